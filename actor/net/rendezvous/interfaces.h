// The network devices of this host, by the names that --network takes.
#pragma once

#include <string>

namespace oneflow_like {

// `devices` as UCX takes them: names separated by commas, each with a port behind it ("mlx5_0:1") or not.
// Throws Error naming the first that this host lacks, and those that it has.
void CheckNetworkDevices(const std::string& devices);

}  // namespace oneflow_like
