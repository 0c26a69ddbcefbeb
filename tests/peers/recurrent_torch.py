#!/usr/bin/env python3
"""Times PyTorch's LSTM and GRU on the rows of tests/oneflow_like/recurrent_benchmark.cc.

  recurrent_torch.py [threads]
"""
import torch

from timing import Rows

BATCH, STEPS, WIDTH = 32, 32, 128


def main():
    rows = Rows()
    x = torch.arange(BATCH * STEPS * WIDTH).float().mul(0.37).sin().reshape(BATCH, STEPS, WIDTH)
    for name, layer in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
        net = layer(WIDTH, WIDTH, batch_first=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def forward():
            return net(x)[0].square().mean()

        def train():
            with torch.enable_grad():
                optimizer.zero_grad()
                forward().backward()
                optimizer.step()

        rows.row(name + "_forward", forward)
        rows.row(name + "_training", train)


main()
