# Prints every scalar that TensorBoard's own reader finds in a folder of event files: "tag step value" a line.
import sys

from tensorboard.backend.event_processing import event_accumulator

reader = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={event_accumulator.SCALARS: 0})
reader.Reload()
for tag in reader.Tags()["scalars"]:
    for scalar in reader.Scalars(tag):
        print(tag, scalar.step, repr(scalar.value))
