// Process 0's side of the rendezvous: accepts connections on one socket until every process of the job has
// presented the token and its identity, sends all of them the table, and has them confirm it. One thread, one
// poll loop; a slow or invalid connection delays only itself.
#pragma once

#include <list>
#include <set>
#include <string>
#include <vector>

#include "actor/net/rendezvous/bootstrap.h"
#include "actor/net/rendezvous/frames.h"
#include "actor/net/rendezvous/tcp.h"

namespace oneflow_like {

class Reception {
 public:
  // `reach`: the address to which the others connect, for messages.
  Reception(const ProcessIdentity& identity, const PeerInfo& mine, const RendezvousOptions& options,
            FileDescriptor listener, std::string reach);
  // `peer` ends before the start because of `why`, which Run tells all that come.
  void End(const PeerInfo& peer, const std::string& why);
  std::vector<PeerInfo> Run();  // see Rendezvous

 private:
  struct Connection {
    FileDescriptor fd;
    std::string from;
    double deadline = 0;  // until then it must identify itself, or is dropped
    FrameReader in;
    std::string out;  // not yet written
    bool knows_token = false;
    bool leaving = false;  // is closed after the rest of `out` is sent
    bool shut = false;     // nothing more will be written
    bool gone = false;     // to be removed
    int process = -1;      // once it has identified itself
    uint64_t visit = 0;
    bool confirmed = false;
  };
  struct Seat {
    Connection* connection = nullptr;  // nullptr: not connected (or process 0's own)
    PeerInfo peer;
  };

  void Turn(double until);
  void Accept();
  bool DropOldestStranger();
  void Read(Connection* c);
  void Hear(Connection* c, const std::string& frame);
  void Welcome(Connection* c, const std::string& frame);
  void Write(Connection* c);
  void Drop(Connection* c, const std::string& why);
  void Refuse(Connection* c, const std::string& why);
  void LeaveWith(Connection* c, const std::string& last_frame);
  void Sweep(double now);
  void GiveTable();
  void TellAll(const std::string& frame);
  bool AllWritten() const;
  void FailAll(const std::string& why, Connection* c = nullptr);
  void TellEnd(Connection* c);
  void TellEndToAll();

  int Come() const;
  bool AllHere();
  bool AllCame() const;
  std::string Missing() const;
  std::string Who(const PeerInfo& peer) const;

  const ProcessIdentity identity_;
  const RendezvousOptions options_;
  const std::string reach_;
  const std::string greeting_;
  FileDescriptor listener_;
  std::list<Connection> connections_;  // oldest first
  std::vector<Seat> seats_;            // by process
  std::string failure_;
  std::string ended_;   // who has ended before the start, and why; empty: nobody
  std::set<int> came_;  // processes that have said who they are
  bool table_given_ = false;
  double end_ = 0;        // until then all must have connected
  double no_accept_ = 0;  // until then nothing is accepted: out of descriptors
  int strangers_ = 0;     // connections that have not identified themselves yet
  int most_strangers_ = 0;
  int64_t dropped_ = 0, wrong_tokens_ = 0, other_jobs_ = 0;
  std::string last_wrong_;  // where the last wrong token came from
  std::string last_other_;  // the last process of another job
};

}  // namespace oneflow_like
