// The token game: a board that holds the marking and knows the rules, a play driven by a queue of running
// firings, and the search for the cycle when nothing can move.
#include "core/plan/token_game.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

namespace oneflow_like {
namespace {

struct Marking {
  int empty = 0, full = 0;
  int taken = 0, peak = 0;  // from the writer's start to the reader's end
};

class Board {
 public:
  explicit Board(const TokenGame& game)
      : game_(game),
        in_(game.transitions.size()),
        out_(game.transitions.size()),
        next_(game.transitions.size()) {
    int transitions = static_cast<int>(game.transitions.size());
    for (size_t i = 0; i < game.places.size(); ++i) {
      const Place& place = game.places[i];
      CHECK(place.writer >= 0 && place.writer < transitions && place.reader >= 0 &&
            place.reader < transitions);
      CHECK(place.write_period >= 1 && place.read_period >= 1 && place.full >= 0);
      if (place.slots > 0 && place.full > place.slots) {
        Fail(Name(i), " starts with ", place.full, " full slots but has ", place.slots);
      }
      out_[place.writer].push_back(static_cast<int>(i));
      in_[place.reader].push_back(static_cast<int>(i));
      int slots = place.slots > 0 ? place.slots : std::numeric_limits<int>::max() / 2;
      marking_.push_back({slots - place.full, place.full, place.full, place.full});
    }
    if (game.waits.empty()) return;
    int acts = 0;
    for (const Transition& t : game.transitions) {
      first_act_.push_back(acts);
      acts += t.acts;
    }
    waits_.resize(acts);
    woken_.resize(acts);
    for (size_t w = 0; w < game.waits.size(); ++w) {
      const ActWait& wait = game.waits[w];
      CHECK(wait.act < game.transitions[wait.transition].acts &&
            wait.other_act < game.transitions[wait.other].acts);
      waits_[first_act_[wait.transition] + wait.act].push_back(static_cast<int>(w));
      woken_[first_act_[wait.other] + wait.other_act].push_back(wait.transition);
    }
  }

  const TokenGame& game() const { return game_; }
  int next(int t) const { return next_[t]; }
  const Marking& marking(int place) const { return marking_[place]; }
  bool Finished(int t) const { return next_[t] >= game_.transitions[t].acts; }

  // What the next act of `t` lacks: a token of that place, or, counted from behind the places, the end of the
  // act that it waits for; -1: nothing.
  int Starved(int t) const {
    int act = next_[t];
    for (int p : in_[t]) {
      if (act % game_.places[p].read_period == 0 && marking_[p].full == 0) return p;
    }
    for (int p : out_[t]) {
      if (act % game_.places[p].write_period == 0 && marking_[p].empty == 0) return p;
    }
    if (waits_.empty()) return -1;
    for (int w : waits_[first_act_[t] + act])
      if (next_[game_.waits[w].other] <= game_.waits[w].other_act)
        return static_cast<int>(game_.places.size()) + w;
    return -1;
  }

  void Start(int t) {
    int act = next_[t];
    for (int p : in_[t]) marking_[p].full -= act % game_.places[p].read_period == 0;
    for (int p : out_[t]) {
      if (act % game_.places[p].write_period != 0) continue;
      Marking& m = marking_[p];
      --m.empty;
      m.peak = std::max(m.peak, ++m.taken);
    }
  }

  // Calls woken(transition) for every transition that a token was given to, and for `t` itself.
  template <typename Woken>
  void End(int t, Woken&& woken) {
    int act = next_[t]++;
    for (int p : in_[t]) {
      const Place& place = game_.places[p];
      if (act % place.read_period != place.read_period - 1) continue;
      ++marking_[p].empty;
      --marking_[p].taken;
      if (place.writer != t) woken(place.writer);
    }
    for (int p : out_[t]) {
      const Place& place = game_.places[p];
      if (act % place.write_period != place.write_period - 1) continue;
      ++marking_[p].full;
      if (place.reader != t) woken(place.reader);
    }
    if (!woken_.empty())
      for (int other : woken_[first_act_[t] + act]) woken(other);
    woken(t);
  }

  std::string Name(int place) const {
    const Place& p = game_.places[place];
    if (!p.name.empty()) return Cat("'", p.name, "'");
    return Cat("'", game_.transitions[p.writer].name, " -> ", game_.transitions[p.reader].name, "'");
  }

  // What the next act of `t` waits for; `t` is starved of `place`.
  std::string Wait(int t, int place) const {
    if (const ActWait* wait = WaitAt(place))
      return Cat(game_.transitions[t].name, " act ", next_[t], " waits for ",
                 game_.transitions[wait->other].name, " act ", wait->other_act);
    const Place& p = game_.places[place];
    bool reads = p.reader == t && next_[t] % p.read_period == 0 && marking_[place].full == 0;
    const std::string& peer = game_.transitions[reads ? p.writer : p.reader].name;
    std::string what = reads ? Cat("a full slot of ", Name(place), " from ", peer)
                             : Cat("a slot of ", Name(place), " held by ", peer);
    return Cat(game_.transitions[t].name, " act ", next_[t], " waits for ", what);
  }

  int Peer(int t, int place) const {
    if (const ActWait* wait = WaitAt(place)) return wait->other;
    const Place& p = game_.places[place];
    bool reads = p.reader == t && next_[t] % p.read_period == 0 && marking_[place].full == 0;
    return reads ? p.writer : p.reader;
  }

  // Throws the reason why the step has ended here: a cycle of waiting transitions, or an unbalanced place.
  void ExplainEnd() const {
    int transitions = static_cast<int>(game_.transitions.size());
    for (int t = 0; t < transitions; ++t) {
      if (!Finished(t)) ExplainWait(t);
    }
    for (size_t i = 0; i < game_.places.size(); ++i) {
      const Place& p = game_.places[i];
      if (marking_[i].full == p.full && marking_[i].taken == p.full) continue;
      const Transition& writer = game_.transitions[p.writer];
      const Transition& reader = game_.transitions[p.reader];
      Fail("the plan cannot repeat: ", writer.name, " fills a slot of ", Name(i), " every ", p.write_period,
           " of ", writer.acts, " acts but ", reader.name, " empties one every ", p.read_period, " of ",
           reader.acts, " acts, so a step does not end as it began");
    }
  }

 private:
  const ActWait* WaitAt(int starved) const {
    const int w = starved - static_cast<int>(game_.places.size());
    return w < 0 ? nullptr : &game_.waits[w];
  }

  [[noreturn]] void ExplainWait(int t) const {
    std::vector<int> chain, place_of(game_.transitions.size(), -1);
    while (!Finished(t) && place_of[t] < 0) {
      place_of[t] = Starved(t);
      CHECK_GE(place_of[t], 0) << game_.transitions[t].name << " could have fired";
      chain.push_back(t);
      t = Peer(t, place_of[t]);
    }
    // Only the cycle is named, not the way into it; when the chain ends at a finished transition, all of it
    // is.
    std::string text;
    auto first = Finished(t) ? chain.begin() : std::find(chain.begin(), chain.end(), t);
    for (auto it = first; it != chain.end(); ++it) {
      text += Cat(it == first ? "" : "; ", Wait(*it, place_of[*it]));
    }
    if (Finished(t)) text += Cat(", which has done all its ", game_.transitions[t].acts, " acts");
    Fail("the plan cannot complete: ", text);
  }

  const TokenGame& game_;
  std::vector<std::vector<int>> in_, out_;  // places of each transition
  std::vector<int> next_;                   // next act of each transition
  std::vector<Marking> marking_;
  std::vector<int> first_act_;                   // of each transition, among those of all
  std::vector<std::vector<int>> waits_, woken_;  // by act: waits; who waits for it. Empty: nobody waits
};

// A ready act that wants its resources. It waits in the line of one busy resource; when that is free the
// first of the line becomes a candidate again.
struct Candidate {
  double priority;
  int act, transition;
  int line;                                   // the resource whose line it comes from, or -1
  bool operator<(const Candidate& o) const {  // the top of a std::priority_queue is the greatest
    return std::tie(o.priority, o.act, o.transition) < std::tie(priority, act, transition);
  }
};

struct Running {
  double end;
  int sequence, transition;
  bool operator<(const Running& o) const { return std::tie(o.end, o.sequence) < std::tie(end, sequence); }
};

class Player {
 public:
  Player(const TokenGame& game, const Priority& priority)
      : board_(game),
        priority_(priority),
        busy_(game.resources),
        line_(game.resources),
        queued_(game.transitions.size()) {
    for (const Transition& t : game.transitions) tolerance_ = std::max(tolerance_, 1e-9 * t.time);
  }

  Play Run() {
    int transitions = static_cast<int>(board_.game().transitions.size());
    for (int t = 0; t < transitions; ++t) Offer(t);
    for (;;) {
      // What ends now comes first, so that all it makes ready competes by priority. Sums of times that are
      // equal on paper may differ in the last bits; the tolerance makes them one moment.
      if (!running_.empty() && running_.top().end <= now_ + tolerance_) {
        Finish();
      } else if (!candidates_.empty()) {
        TryStart();
      } else if (!running_.empty()) {
        now_ = running_.top().end;
      } else {
        break;
      }
    }
    board_.ExplainEnd();
    for (size_t p = 0; p < board_.game().places.size(); ++p) play_.peak.push_back(board_.marking(p).peak);
    play_.makespan = now_;
    return std::move(play_);
  }

 private:
  void Offer(int t) {
    if (queued_[t] || board_.Finished(t) || board_.Starved(t) >= 0) return;
    queued_[t] = true;
    candidates_.push({priority_(t, board_.next(t)), board_.next(t), t, -1});
  }

  void OfferFrom(int resource) {
    if (line_[resource].empty()) return;
    candidates_.push(line_[resource].top());
    line_[resource].pop();
  }

  void TryStart() {
    Candidate c = candidates_.top();
    candidates_.pop();
    const Transition& transition = board_.game().transitions[c.transition];
    for (int r : transition.resources) {
      if (!busy_[r]) continue;
      int from = c.line;
      c.line = r;
      line_[r].push(c);
      if (from >= 0 && from != r && !busy_[from]) OfferFrom(from);
      return;
    }
    for (int r : transition.resources) busy_[r] = true;
    board_.Start(c.transition);
    double end = now_ + transition.time;
    running_.push({end, static_cast<int>(play_.firings.size()), c.transition});
    play_.firings.push_back({c.transition, c.act, now_, end});
  }

  void Finish() {
    Running ended = running_.top();
    running_.pop();
    now_ = std::max(now_, ended.end);
    queued_[ended.transition] = false;
    for (int r : board_.game().transitions[ended.transition].resources) {
      busy_[r] = false;
      OfferFrom(r);
    }
    board_.End(ended.transition, [this](int t) { Offer(t); });
  }

  Board board_;
  const Priority& priority_;
  std::vector<char> busy_;                            // by resource
  std::vector<std::priority_queue<Candidate>> line_;  // by resource
  std::vector<char> queued_;                          // by transition: candidate, in a line, or running
  std::priority_queue<Candidate> candidates_;
  std::priority_queue<Running> running_;
  double now_ = 0, tolerance_ = 0;
  Play play_;
};

}  // namespace

Play PlayStep(const TokenGame& game, const Priority& priority) { return Player(game, priority).Run(); }

Status CheckOrder(const TokenGame& game, const std::vector<Firing>& order) {
  Board board(game);
  int transitions = static_cast<int>(game.transitions.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const Firing& firing = order[i];
    if (firing.transition < 0 || firing.transition >= transitions) {
      return Status(
          Cat("entry ", i, " of the order names transition ", firing.transition, " of ", transitions));
    }
    int t = firing.transition;
    const Transition& transition = game.transitions[t];
    if (firing.act != board.next(t) || board.Finished(t)) {
      return Status(Cat("entry ", i, " of the order is ", transition.name, " act ", firing.act, " but ",
                        board.Finished(t) ? Cat("all its ", transition.acts, " acts are done")
                                          : Cat("its next act is ", board.next(t))));
    }
    if (int place = board.Starved(t); place >= 0) {
      return Status(Cat("entry ", i, " of the order: ", board.Wait(t, place)));
    }
    board.Start(t);
    board.End(t, [](int) {});
  }
  for (int t = 0; t < transitions; ++t) {
    if (!board.Finished(t)) {
      return Status(Cat("the order ends before ", game.transitions[t].name, " act ", board.next(t)));
    }
  }
  return Status();
}

}  // namespace oneflow_like
