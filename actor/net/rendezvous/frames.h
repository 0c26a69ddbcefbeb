// Frames of the rendezvous: four bytes of length, most significant first, followed by so many bytes. A
// connection's first frame is the greeting: a fixed word and the job's token; the others are messages of
// wire.proto.
#pragma once

#include <string>

#include "actor/net/rendezvous/bootstrap.h"
#include "actor/net/rendezvous/wire.pb.h"

namespace oneflow_like {

constexpr size_t kLongestHello = 64 << 10;
constexpr size_t kLongestTable = 256 << 20;

std::string Frame(const std::string& payload);

// Only the fixed word if the token is empty.
std::string Greeting(const std::string& token);
// Takes the same time wherever the two differ; lengths are not secret.
bool SameSecret(const std::string& a, const std::string& b);

// Takes bytes as they arrive, and returns complete frames.
class FrameReader {
 public:
  void Add(const char* data, size_t bytes) { bytes_.append(data, bytes); }
  enum class Result { kNone, kFrame, kTooLong };
  Result Next(size_t longest, std::string* frame);

 private:
  std::string bytes_;
};

wire::Peer ToWire(const PeerInfo& peer);
PeerInfo FromWire(const wire::Peer& peer);

// Seconds of the steady clock.
double SteadySeconds();

}  // namespace oneflow_like
