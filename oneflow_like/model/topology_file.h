// Topology files: machines that need not be at hand, as text.
#pragma once

#include <string>

#include "compiler/cost/machine.h"

namespace oneflow_like {

// Reads a topology file: what a device can do and which links join devices, a line each; examples/topologies
// has some, and says what the words mean. Throws Error, naming the file and the line.
Machine ReadTopology(const std::string& path);
// Such a file, which ReadTopology reads back as the same machine, to the last bit; names of levels are not
// kept.
std::string TopologyText(const Machine& machine);
// Throws Error when it joins fewer.
void RequireDevices(const Machine& machine, int devices);

}  // namespace oneflow_like
