// The network devices of this host, by the names that --network takes.
#pragma once

#include <string>

namespace oneflow_like {

// `devices` in UCX's format: names separated by commas, with or without a port ("mlx5_0:1"). Throws Error
// naming the first that this host lacks, and those that it has.
void CheckNetworkDevices(const std::string& devices);

}  // namespace oneflow_like
