// The timed token game: transitions take tokens from places, occupy their resources for a while, and put
// tokens into places. The compiler plays one step of it to find the order of acts and the number of slots;
// tests compare it with the runtime; with times it models a schedule.
//
// A place is an edge of the plan: a ring of `slots` slots between one writer and one reader. A writer takes
// an empty slot at the start of the first act of its period and gives it full at the end of the last; a
// reader takes a full slot at the start of the first act of its period and gives it back empty at the end of
// the last.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace oneflow_like {

struct Transition {
  std::string name;
  int acts = 1;                // per step
  double time = 1;             // of one act
  std::vector<int> resources;  // each runs one act at a time; empty: unlimited
};

struct Place {
  int writer = 0, reader = 0;  // transitions
  int slots = 0;               // 0: unlimited, the play reports how many were used
  int write_period = 1;        // acts of the writer that share a slot (accumulation)
  int read_period = 1;         // acts of the reader that share a slot (repetition)
  int full = 0;                // slots full at the start of a step (loop-carried values)
  std::string name;            // for messages; empty: "writer -> reader"
};

// An act that must not start before another one of the same step has ended, although no place implies it.
struct ActWait {
  int transition = 0, act = 0;
  int other = 0, other_act = 0;
};

struct TokenGame {
  std::vector<Transition> transitions;
  std::vector<Place> places;
  std::vector<ActWait> waits;
  int resources = 0;
};

struct Firing {
  int transition = 0;
  int act = 0;
  double start = 0, end = 0;
};

struct Play {
  std::vector<Firing> firings;  // one step, by start; ties in the order they were chosen
  std::vector<int> peak;        // per place: most slots taken at once (writer's start to reader's end)
  double makespan = 0;
};

// Lower fires first among those that are ready at one time. Ties break by act, then by transition.
using Priority = std::function<double(int transition, int act)>;

// Plays one step: every transition fires `acts` times. Throws Error naming the cycle (transitions that wait
// for each other, and the place each waits on) when it cannot complete, or when the marking afterwards is not
// the one at the start.
Play PlayStep(const TokenGame& game, const Priority& priority);

// Whether the given order of one step is a run of the game: every firing finds its tokens. Returns the first
// firing that does not, named.
Status CheckOrder(const TokenGame& game, const std::vector<Firing>& order);

}  // namespace oneflow_like
