// Job::AllGather on the network's thread: a star through process 0, which receives a text from every process,
// checks that all call the same exchange, and sends all texts to every process.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "actor/net/talk/control.h"

namespace oneflow_like {

class Gather {
 public:
  struct Host {
    std::function<std::string(int)> describe;  // a process
    // This process's exchange has ended: with all texts, or an error.
    std::function<void(const std::string& error, std::vector<std::string> texts)> done;
    // Called when this process waits for one that has ended its program.
    std::function<void(int process)> left_alone;
  };

  Gather(ControlChannel* control, int me, int processes, Host host);

  // REQUIRES: this process's last exchange is done.
  void Start(const std::string& what, const std::string& mine);
  void Received(int from, ControlKind kind, const std::string& text);
  // Process `from` will start no further exchange.
  void Ended(int from);
  // The exchange for which this process waits: "the exchange 'plans'", or empty.
  std::string awaited() const;

 private:
  struct Part {
    std::string what, text;
  };
  void Add(int from, Part part);
  void Answer();
  void CheckAlone();

  ControlChannel* const control_;
  const int me_;
  const Host host_;
  std::string what_;  // of this process's exchange
  bool waiting_ = false;
  std::vector<bool> ended_;              // by process
  std::vector<std::deque<Part>> parts_;  // process 0: by process, of this exchange and later ones
};

}  // namespace oneflow_like
