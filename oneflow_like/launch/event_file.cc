// Records of a TFRecord file, each a protobuf Event. The framing is documented at
// tensorflow.org/tutorials/load_data/tfrecord ("TFRecords format details"): the length in 8 bytes, the masked
// checksum of these 8 in 4, the bytes, and their masked checksum in 4; numbers are little-endian.
#include "oneflow_like/launch/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "oneflow_like/launch/event.pb.h"

namespace oneflow_like {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<uint32_t, 256> CastagnoliTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? 0x82f63b78u : 0u);
    table[byte] = rest;
  }
  return table;
}

// A checksum of bytes that hold checksums is a weak one, so those in the file are turned and moved.
std::string MaskedChecksum(std::string_view bytes) {
  const uint32_t masked = std::rotr(Crc32c(bytes), 15) + 0xa282ead8u;
  return std::string(reinterpret_cast<const char*>(&masked), sizeof masked);
}

std::chrono::microseconds SinceEpoch() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

events::Event NewEvent(int64_t step) {
  events::Event event;
  event.set_wall_time(static_cast<double>(SinceEpoch().count()) * 1e-6);
  event.set_step(step);
  return event;
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = CastagnoliTable();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 255];
  return ~crc;
}

EventFile::EventFile(const std::string& folder, int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) Fail("folder ", folder, " for event files cannot be made: ", error.message());
  char host[256] = "host", name[400];
  gethostname(host, sizeof host - 1);
  // Readers take the files of a folder in the order of their names.
  const long long now = SinceEpoch().count();
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.%06lld.%s.%d", now / 1'000'000,
                now % 1'000'000, host, static_cast<int>(getpid()));
  path_ = folder + "/" + name;
  file_ = std::fopen(path_.c_str(), "wbx");
  if (file_ == nullptr) Fail("cannot make the event file ", path_, ": ", std::strerror(errno));
  events::Event version = NewEvent(0);
  version.set_file_version("brain.Event:2");
  WriteRecord(version.SerializeAsString());
  events::Event start = NewEvent(first_step);
  start.mutable_session_log()->set_status(events::SessionLog::START);
  WriteRecord(start.SerializeAsString());
}

EventFile::~EventFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void EventFile::Write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  events::Event event = NewEvent(step);
  for (const auto& [tag, value] : scalars) {
    events::Summary::Value* v = event.mutable_summary()->add_value();
    v->set_tag(tag);
    v->set_simple_value(static_cast<float>(value));
  }
  WriteRecord(event.SerializeAsString());
}

void EventFile::WriteRecord(const std::string& bytes) {
  const uint64_t size = bytes.size();
  const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
  const std::string record = length + MaskedChecksum(length) + bytes + MaskedChecksum(bytes);
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() || std::fflush(file_) != 0)
    Fail("cannot write to the event file ", path_, ": ", std::strerror(errno));
}

}  // namespace oneflow_like
