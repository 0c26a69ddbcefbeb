#include "actor/net/rendezvous/frames.h"

#include <chrono>

namespace oneflow_like {

std::string Frame(const std::string& payload) {
  std::string frame;
  for (int shift : {24, 16, 8, 0}) frame += static_cast<char>(payload.size() >> shift & 0xff);
  return frame + payload;
}

std::string Greeting(const std::string& token) { return "oneflow_like rendezvous 1\n" + token; }

bool SameSecret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char different = 0;
  for (size_t i = 0; i < a.size(); ++i) different = different | (a[i] ^ b[i]);
  return different == 0;
}

FrameReader::Result FrameReader::Next(size_t longest, std::string* frame) {
  if (bytes_.size() < 4) return Result::kNone;
  size_t length = 0;
  for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<unsigned char>(bytes_[i]);
  if (length > longest) return Result::kTooLong;
  if (bytes_.size() < 4 + length) return Result::kNone;
  *frame = bytes_.substr(4, length);
  bytes_.erase(0, 4 + length);
  return Result::kFrame;
}

wire::Peer ToWire(const PeerInfo& peer) {
  wire::Peer w;
  w.set_process(peer.process);
  w.set_host(peer.host);
  w.set_host_key(peer.host_key);
  w.set_pid(peer.pid);
  w.set_address(peer.address);
  w.set_region(peer.region);
  w.set_version(peer.version);
  w.set_cores(peer.cores);
  return w;
}

PeerInfo FromWire(const wire::Peer& w) {
  return {w.process(), w.host(), w.host_key(), w.pid(), w.address(), w.region(), w.version(), w.cores()};
}

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace oneflow_like
