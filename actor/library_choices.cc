// Two rounds: what each process has to decide, with what it has kept; then what those have timed to whom it
// falls.
#include "actor/library_choices.h"

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "actor/clock.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

struct Open {
  int64_t proposal = -1;
  const TimingPlace* place = nullptr;  // that has most memory
};

std::map<std::string, Open> OpenHere(Backend* backend, const std::vector<TimingPlace>& places) {
  std::map<std::string, Open> open;
  for (const TimingPlace& place : places)
    for (const LibraryChoice& choice : backend->OpenChoices(place.device)) {
      Open& here = open[choice.work];
      here.proposal = choice.proposal;
      if (here.place == nullptr || here.place->bytes < place.bytes) here.place = &place;
    }
  return open;
}

// "3 product ..." to a line.
std::string TextOf(const std::vector<LibraryChoice>& choices) {
  std::string text;
  for (const LibraryChoice& choice : choices) text += Cat(choice.proposal, " ", choice.work, "\n");
  return text;
}

std::vector<LibraryChoice> ChoicesOf(const std::string& text) {
  std::vector<LibraryChoice> choices;
  std::istringstream lines(text);
  LibraryChoice choice;
  while (lines >> choice.proposal && std::getline(lines >> std::ws, choice.work)) choices.push_back(choice);
  return choices;
}

}  // namespace

void DecideLibraryChoices(Backend* backend, const std::vector<TimingPlace>& places,
                          const ExchangeTexts& exchange, const std::string& plan, bool tune) {
  const std::map<std::string, Open> here = OpenHere(backend, places);
  std::vector<LibraryChoice> mine;
  for (const auto& [work, open] : here) mine.push_back({work, tune ? open.proposal : 0});
  if (!tune) {
    if (backend != nullptr) backend->Decide(mine, false);
    return;
  }
  // A process is known by its first rank, as it does not know its number.
  const int me = places.empty() ? -1 : places[0].rank;
  const auto gather = [&](const std::string& what, const std::vector<LibraryChoice>& choices) {
    const std::string text = Cat(me, "\n", TextOf(choices));
    return exchange ? exchange(Cat(what, " of plan ", plan), text) : std::vector<std::string>{text};
  };

  // By work: the first process that knows, else the first that asks. All find the same.
  struct Owned {
    int owner = -1;
    int64_t proposal = -1;
  };
  std::map<std::string, Owned> all;
  bool open = false;
  for (const std::string& text : gather("products to choose for", mine)) {
    const size_t end = text.find('\n');
    const int process = std::stoi(text);
    for (const LibraryChoice& choice : ChoicesOf(text.substr(end + 1))) {
      const auto [at, fresh] = all.try_emplace(choice.work, Owned{process, choice.proposal});
      if (!fresh && at->second.proposal < 0 && choice.proposal >= 0) at->second = {process, choice.proposal};
    }
  }
  for (const auto& [work, owned] : all) open |= owned.proposal < 0;

  std::vector<LibraryChoice> timed;
  if (open) {
    const int64_t start = SteadyNanoseconds();
    for (const auto& [work, owned] : all) {
      if (owned.proposal >= 0 || owned.owner != me) continue;
      const TimingPlace& place = *here.at(work).place;
      timed.push_back(
          {work, backend->TimeProposals(work, place.stream, place.scratch, place.bytes, nullptr)});
    }
    const auto from = [&](int64_t number) {
      return std::count_if(timed.begin(), timed.end(), [=](const auto& t) { return t.proposal >= number; });
    };
    if (!timed.empty())
      LOG(INFO) << "timed the library's proposals for " << timed.size() << " products of plan " << plan
                << " in " << static_cast<double>(SteadyNanoseconds() - start) * 1e-9 << " s; " << from(1)
                << " take another one than its first, " << from(kSumsApart)
                << " of these the product alone with sums of our own";
    for (const std::string& text : gather("products chosen for", timed))
      for (const LibraryChoice& choice : ChoicesOf(text.substr(text.find('\n') + 1)))
        all[choice.work].proposal = choice.proposal;
  }

  if (backend == nullptr) return;
  std::vector<LibraryChoice> known, unknown, kept;
  for (const auto& [work, owned] : all) {
    if (owned.proposal >= 0) {
      known.push_back({work, owned.proposal});
      if (const auto found = here.find(work); found != here.end()) kept.push_back(known.back());
    } else {
      unknown.push_back({work, 0});
    }
  }
  backend->Decide(kept, true);
  backend->Decide(known, false);
  backend->Decide(unknown, false);
}

}  // namespace oneflow_like
