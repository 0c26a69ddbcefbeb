#include "actor/net/launch/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace oneflow_like {

bool WriteAll(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    ssize_t wrote = write(fd, data, bytes);
    if (wrote < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      pollfd wait = {fd, POLLOUT, 0};
      poll(&wait, 1, -1);
      continue;
    }
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    data += wrote;
    bytes -= wrote;
  }
  return true;
}

void LineWriter::Add(const char* data, size_t bytes, double now) {
  if (held_.empty()) since_ = now;
  size_t searched = held_.size();
  held_.append(data, bytes);
  size_t end = held_.find_last_of('\n');
  if (end != std::string::npos && end >= searched) {
    Write(std::string_view(held_).substr(0, end + 1));
    held_.erase(0, end + 1);
    since_ = now;
  }
  if (held_.size() >= kLongestLine) Flush();
}

void LineWriter::Flush() {
  if (held_.empty()) return;
  if (!label_.empty()) held_ += '\n';
  Write(held_);
  held_.clear();
}

// `text` is whole lines, or without a label any text.
void LineWriter::Write(std::string_view text) {
  std::string out;
  if (sink_->unfinished != nullptr && sink_->unfinished != this) out += '\n';
  sink_->unfinished = text.back() == '\n' ? nullptr : this;
  if (label_.empty()) {
    out += text;
  } else {
    while (!text.empty()) {
      size_t end = text.find('\n') + 1;
      out += label_;
      out += text.substr(0, end);
      text.remove_prefix(end);
    }
  }
  if (!WriteAll(sink_->fd, out.data(), out.size()) && sink_->error == 0) sink_->error = errno;
}

}  // namespace oneflow_like
