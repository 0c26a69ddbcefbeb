// The star of AllGather.
#include "actor/net/talk/gather.h"

#include <glog/logging.h>

#include <cstring>
#include <utility>

#include "core/error.h"

namespace oneflow_like {
namespace {

void AppendText(const std::string& text, std::string* to) {
  uint64_t bytes = text.size();
  to->append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  to->append(text);
}

std::string TakeText(const std::string& from, size_t* at) {
  uint64_t bytes = 0;
  CHECK_LE(*at + sizeof(bytes), from.size());
  std::memcpy(&bytes, from.data() + *at, sizeof(bytes));
  *at += sizeof(bytes);
  CHECK_LE(bytes, from.size() - *at);
  *at += bytes;
  return from.substr(*at - bytes, bytes);
}

}  // namespace

Gather::Gather(ControlChannel* control, int me, int processes, Host host)
    : control_(control), me_(me), host_(std::move(host)), ended_(processes, false), parts_(processes) {}

void Gather::Start(const std::string& what, const std::string& mine) {
  CHECK(!waiting_);
  waiting_ = true;
  what_ = what;
  if (me_ == 0) {
    Add(0, {what, mine});
  } else {
    auto text = std::make_shared<std::string>();
    AppendText(what, text.get());
    AppendText(mine, text.get());
    control_->Send(0, ControlKind::kGatherPart, 0, std::move(text));
  }
  CheckAlone();
}

void Gather::Received(int from, ControlKind kind, const std::string& text) {
  size_t at = 0;
  if (kind == ControlKind::kGatherPart) {
    Part part;
    part.what = TakeText(text, &at);
    part.text = TakeText(text, &at);
    return Add(from, std::move(part));
  }
  CHECK(waiting_ && from == 0);
  waiting_ = false;
  if (kind == ControlKind::kGatherMismatch) return host_.done(text, {});
  std::vector<std::string> texts;
  while (at < text.size()) texts.push_back(TakeText(text, &at));
  host_.done("", std::move(texts));
}

void Gather::Add(int from, Part part) {
  parts_[from].push_back(std::move(part));
  for (const auto& parts : parts_) {
    if (parts.empty()) return;
  }
  Answer();
}

void Gather::Answer() {
  std::vector<std::string> texts;
  std::string error;
  const std::string what = parts_[0].front().what;
  for (size_t p = 0; p < parts_.size(); ++p) {
    Part part = std::move(parts_[p].front());
    parts_[p].pop_front();
    texts.push_back(std::move(part.text));
    if (part.what == what || !error.empty()) continue;
    error = Cat("the processes have come apart: ", host_.describe(0), " is at '", what, "', ",
                host_.describe(static_cast<int>(p)), " at '", part.what,
                "'; all must run the same program in the same order");
  }
  auto answer = std::make_shared<std::string>(error);
  if (error.empty()) {
    for (const std::string& text : texts) AppendText(text, answer.get());
  }
  ControlKind kind = error.empty() ? ControlKind::kGatherResult : ControlKind::kGatherMismatch;
  for (size_t p = 1; p < parts_.size(); ++p) control_->Send(static_cast<int>(p), kind, 0, answer);
  waiting_ = false;
  host_.done(error, std::move(texts));
}

void Gather::Ended(int from) {
  ended_[from] = true;
  CheckAlone();
}

// What somebody said before it ended has come before its goodbye, so what is not here will not come.
void Gather::CheckAlone() {
  if (!waiting_) return;
  for (size_t p = 0; p < parts_.size(); ++p) {
    bool needed = me_ == 0 ? parts_[p].empty() : p == 0;
    if (needed && ended_[p]) return host_.left_alone(static_cast<int>(p));
  }
}

std::string Gather::awaited() const { return waiting_ ? Cat("the exchange '", what_, "'") : ""; }

}  // namespace oneflow_like
