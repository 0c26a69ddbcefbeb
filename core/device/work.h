// Work: what one act of a kernel computes and touches, in amounts that its time grows with. All estimates of
// time, from the choice of signatures to simulations and calibration, are functions of it and of a machine
// (compiler/cost/).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace oneflow_like {

struct KernelSpec;

struct Work {
  // How near to a device's peak the arithmetic comes: as large products do, as attention does, or not at all,
  // as the bytes decide. A copy from or to the host takes the time of its bytes on the way there.
  enum class Kind : uint8_t { kOther, kProduct, kAttention, kHostCopy };

  double calls = 0, flops = 0, bytes = 0;
  Kind kind = Kind::kOther;
  double largest = 0;  // elements of the largest operand, unless kOther

  // Parts that some kernels state (KernelCost::work). Of a product: bytes of its left and right operand; of a
  // right one stored transposed; of those whose neighbours in a column, along which it is packed, are a page
  // or more apart; of its result, and of a result that it adds to.
  double left = 0, right = 0, turned = 0, strided = 0, result = 0, sum = 0;
  // Of attention: scores in its tiles, and of these such that dropout is drawn for.
  double score = 0, dropped = 0;
  // Of a kernel that states no parts: bytes in excess of those that it may find in its cores' own caches.
  double far = 0;

  bool operator==(const Work&) const = default;
};

// The amounts by name, as topology files give the seconds of each.
struct NamedAmount {
  const char* name;
  double Work::*value;
  bool of_all = false;  // operators
};
inline constexpr NamedAmount kAmounts[] = {
    {"call", &Work::calls, true}, {"flop", &Work::flops, true}, {"byte", &Work::bytes, true},
    {"left", &Work::left},        {"right", &Work::right},      {"turned", &Work::turned},
    {"strided", &Work::strided},  {"result", &Work::result},    {"sum", &Work::sum},
    {"score", &Work::score},      {"dropped", &Work::dropped},  {"far", &Work::far}};

// What does a kernel's arithmetic on a GPU.
struct ComputeUnit {
  enum class Kind : uint8_t {
    kBandwidth,  // there is little, and bytes decide
    kLibrary,    // a library's tensor cores
    kTile,       // tensor cores, by our own kernel
    kPlain,      // the plain cores, which are an order of magnitude slower
  };
  Kind kind = Kind::kBandwidth;
  std::string why = {};  // what keeps it on plain cores: "its operands are f32"
};
using UnitFn = std::function<ComputeUnit(const KernelSpec&)>;

// How the time of a host's kernel is known, in its entry of the registry.
struct KernelCost {
  // Name under which its times are measured, which several kernels may share; empty: its own.
  std::string measured_as = {};
  // Divides the work, given as one call with its flops and bytes, into what the kernel does of each amount.
  // Empty: the work stays as it is.
  std::function<void(const KernelSpec&, Work*)> work = {};
  // The kernels whose arithmetic this one does in one pass over memory; empty: none.
  std::function<std::vector<std::string>(const KernelSpec&)> steps = {};
};

}  // namespace oneflow_like
