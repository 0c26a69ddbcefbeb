// Three things may be open: the stages of blocks, the cuts of weights, and how values wait for their
// gradients. The first two are settled before signatures are chosen; together they are a *setting*. For each
// setting the graph is lowered once, and compiler/search/choose_recompute.h searches for how values wait.
//
// Settings are compared by their *hope*, an optimistic estimate of the seconds of a step: the least of the
// plans that keep all values, recompute some, or recompute all, of those that fit, and of points on the line
// between one that fits and one that does not. The most hopeful setting is searched first, then the
// neighbours of the best one, as long as one of them is faster. All limits count plans and nodes, never
// seconds.
#include "oneflow_like/session/decide.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "compiler/graph/training.h"
#include "compiler/search/choose_recompute.h"
#include "oneflow_like/job/together.h"
#include "oneflow_like/model/blocks.h"
#include "oneflow_like/session/cut_moves.h"
#include "oneflow_like/session/cuts_report.h"
#include "oneflow_like/session/logit_tiles.h"
#include "oneflow_like/session/summary.h"
#include "ops/language/losses.h"

namespace oneflow_like {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Question {
  const Asked& asked;
  const Budget& budget;
  const CompileOptions& options;
  const Decisions& given;  // what is not open
  bool large = false;      // whether settings are compared by a single plan each
  size_t beside = 0;       // most neighbours of the best setting that are tried
};

// A plan of a setting.
struct Plan {
  StageCuts stages;
  VariableCuts cuts;
  WaitChoice waits;
  bool fits = false;
  std::string beside = {};  // what was compared with it, for people
};

// Returns the graph of what was asked for, with these decisions, after the passes up to `upto`.
Graph Passed(const Asked& asked, const Decisions& decisions, const CompileOptions& options,
             const char* upto) {
  Graph graph = GraphOf(asked, decisions);
  try {
    return RunPasses("", upto, std::move(graph), options);
  } catch (const Error& error) {
    Fail(asked.who, ": ", error.what());
  }
}

RecomputeSearch PlansOf(const Question& q, const StageCuts& stages, const VariableCuts& cuts) {
  Decisions d = q.given;
  d.stages = stages;
  d.cuts = cuts;
  return RecomputeSearch(Passed(q.asked, d, q.options, kBeforeWaits), q.options, q.budget.beside);
}

bool Fits(const Question& q, const WaitChoice& choice) {
  return q.budget.bytes == 0 || choice.peak() <= q.budget.bytes;
}

// Returns the ranks that need too much memory. If waits were searched for, only the fullest one: its bytes
// are then the least possible.
std::vector<int> TooFull(const Question& q, const WaitChoice& choice) {
  std::vector<int> ranks;
  const int64_t peak = choice.peak();
  for (const auto& [rank, bytes] : choice.bytes)
    if (q.budget.waits ? bytes == peak : bytes > q.budget.bytes) ranks.push_back(rank);
  if (q.budget.waits) ranks.resize(1);
  return ranks;
}

// Returns the fastest plan with these cuts that fits. While none fits, moves blocks out of stages that are
// too full. If none can be moved any more, returns the first plan, or the smallest if waits were searched
// for: neither depends on the budget.
Plan Within(const Question& q, const VariableCuts& cuts) {
  Divisions divisions(*q.asked.source, q.given.stages);
  std::optional<Plan> refused;
  while (true) {
    RecomputeSearch plans = PlansOf(q, divisions.now(), cuts);
    Plan plan{divisions.now(), cuts, plans.Within(q.budget.bytes)};
    plan.fits = Fits(q, plan.waits);
    if (plan.fits) return plan;
    const std::vector<int> full = TooFull(q, plan.waits);
    if (!refused || (q.budget.waits && plan.waits.peak() < refused->waits.peak())) refused = std::move(plan);
    if (!divisions.TakeFrom(full)) return *refused;
  }
}

// A choice of cuts that was looked at, with the blocks on their first stages.
struct Setting {
  VariableCuts cuts;
  WaitChoice least;      // the plan that keeps least
  double hope = kNever;  // seconds
  bool roomy = false;    // whether the plan that keeps most fits
  bool searched = false;
};

Setting Look(const Question& q, const VariableCuts& cuts) {
  RecomputeSearch plans = PlansOf(q, q.given.stages, cuts);
  Setting setting{.cuts = cuts, .least = plans.All(plans.modes().back())};
  const auto fits = [&](const WaitChoice& choice) { return Fits(q, choice); };
  if (fits(setting.least)) setting.hope = setting.least.seconds;
  setting.roomy = plans.regions().empty() && fits(setting.least);
  if (q.large || plans.regions().empty()) return setting;
  const WaitChoice all = plans.All(plans.modes().front());
  setting.roomy = fits(all);
  if (setting.roomy) {
    setting.hope = all.seconds;
    setting.least = all;
    return setting;
  }
  std::vector<Verdict> alike;
  for (const Recompute mode : plans.modes()) {
    const WaitChoice some = plans.All(mode);
    alike.push_back({some.seconds, some.peak()});
  }
  setting.hope = HopeBetween(alike, q.budget.bytes);
  return setting;
}

// Cuts that were looked at, each once.
class Settings {
 public:
  explicit Settings(const Question& q) : q_(q) {}

  Setting& Of(const VariableCuts& cuts) {
    const auto at = std::find_if(all_.begin(), all_.end(), [&](const auto& s) { return s->cuts == cuts; });
    if (at != all_.end()) return **at;
    all_.push_back(std::make_unique<Setting>(Look(q_, cuts)));
    return *all_.back();
  }
  bool Knows(const VariableCuts& cuts) const {
    return std::any_of(all_.begin(), all_.end(), [&](const auto& s) { return s->cuts == cuts; });
  }
  size_t size() const { return all_.size(); }
  // The one with most hope that was not searched and may be faster than `seconds`; nullptr: none.
  Setting* MostHopeful(double seconds) {
    Setting* best = nullptr;
    for (const auto& s : all_)
      if (!s->searched && s->hope < (best ? best->hope : seconds)) best = s.get();
    return best;
  }
  // The one with most hope beside these cuts; nullptr: none.
  const Setting* Next(const VariableCuts& cuts) const {
    const Setting* next = nullptr;
    for (const auto& s : all_)
      if (s->cuts != cuts && s->hope < (next ? next->hope : kNever)) next = s.get();
    return next;
  }
  const Setting& Smallest() const {
    return **std::min_element(all_.begin(), all_.end(),
                              [](const auto& a, const auto& b) { return a->least.peak() < b->least.peak(); });
  }

 private:
  const Question& q_;
  std::vector<std::unique_ptr<Setting>> all_;
};

constexpr size_t kMostSettings = 64;

// Goes from the smallest setting to a smaller neighbour, and so on, until one fits. Prices cannot find it:
// they are of all bytes, and the budget is of those that exist at once. If no change of one kind of weights
// helps, tries changes of two.
void Descend(const Question& q, Settings* settings) {
  const auto beside_of = [&](const VariableCuts& cuts) {
    return CutsBeside(q.asked.model(), q.options, cuts);
  };
  const auto until_smaller = [&](const std::vector<VariableCuts>& all) {
    const int64_t before = settings->Smallest().least.peak();
    for (const VariableCuts& cuts : all) {
      if (settings->Knows(cuts)) continue;
      if (settings->size() >= kMostSettings) return true;
      const Setting& tried = settings->Of(cuts);
      if (tried.hope < kNever || tried.least.peak() < before) return true;
    }
    return false;
  };
  while (!settings->MostHopeful(kNever) && settings->size() < kMostSettings) {
    const std::vector<VariableCuts> beside = beside_of(settings->Smallest().cuts);
    bool smaller = until_smaller(beside);
    for (size_t i = 0; i < beside.size() && !smaller; ++i) smaller = until_smaller(beside_of(beside[i]));
    if (!smaller) return;
  }
}

// Tries the cuts at rising prices of a byte until nothing has to be recomputed, then prices between the last
// two.
void ClimbPrices(const Question& q, CutMoves* moves, Settings* settings) {
  constexpr int kDigits = 12, kRounds = 4;
  const auto price_of = [](int digits) { return std::pow(10.0, -digits); };  // in the highest
  const auto enough = [&](double price) {
    const Setting& setting = settings->Of(moves->At(price));
    return q.large ? setting.hope < kNever : setting.roomy;
  };
  int digits = kDigits;
  while (digits >= 0 && !enough(price_of(digits))) digits -= 2;
  if (digits < 0) return;
  double high = price_of(digits), low = price_of(digits + 2);
  for (int round = 0; round < kRounds; ++round) {
    const double middle = std::sqrt(low * high);
    (enough(middle) ? high : low) = middle;
  }
}

// Searches the settings that may be faster than `best`, and keeps the best plan there.
void SearchHopeful(const Question& q, Settings* settings, std::optional<Plan>* best) {
  const auto seconds = [&] { return *best && (*best)->fits ? (*best)->waits.seconds : kNever; };
  size_t searched = 0;
  const size_t most = q.large ? 1 : kMostSettings;
  for (Setting* s; searched < most && (s = settings->MostHopeful(seconds())); ++searched) {
    s->searched = true;
    // Computing again may be faster than not, too.
    Plan plan =
        s->roomy && !q.budget.waits ? Plan{q.given.stages, s->cuts, s->least, true} : Within(q, s->cuts);
    // The search may divide blocks otherwise and find nothing; what was looked at stands then.
    if (!plan.fits) plan = {q.given.stages, s->cuts, s->least, Fits(q, s->least)};
    if (!*best || (plan.fits && plan.waits.seconds < seconds())) *best = std::move(plan);
  }
}

// Searches the neighbours of the best plan, which cut one kind of weights in another way, as long as that is
// notably faster.
void GoBeside(const Question& q, Settings* settings, std::optional<Plan>* best) {
  constexpr double kNotable = 0.99;
  const size_t most = settings->size() + q.beside;
  while (settings->size() < most) {
    const double before = (*best)->waits.seconds;
    for (const VariableCuts& cuts : CutsBeside(q.asked.model(), q.options, (*best)->cuts))
      if (settings->size() < most) settings->Of(cuts);
    SearchHopeful(q, settings, best);
    if ((*best)->waits.seconds > kNotable * before) return;
  }
}

// "... the next best is estimated to take 1.3 % longer: it has block*/mlp/up whole"
std::string NextText(const Plan& best, size_t settings, const Setting& next) {
  constexpr size_t kShown = 3;
  std::set<std::string> differ;
  for (const auto& [weight, cut] : next.cuts)
    if (const auto mine = best.cuts.find(weight); mine == best.cuts.end() || mine->second != cut) {
      const NameInBlock at = InBlock(weight);
      differ.insert(at.block.empty() ? weight : at.block.substr(0, at.block.size() - 1) + "*" + at.name);
    }
  std::erase_if(differ, IsTrainingState);
  std::string names;
  size_t shown = 0;
  for (const std::string& name : differ)
    if (shown++ < kShown) names += Cat(names.empty() ? "" : ", ", name);
  if (differ.size() > kShown) names += Cat(" and ", differ.size() - kShown, " more");
  const double longer = next.hope / best.waits.seconds - 1;
  return Cat("of ", settings, " choices of cuts that were compiled the next best is estimated to take ",
             PercentText(longer, 1), " longer; it cuts ", names, " otherwise\n");
}

// "next best of 57 plans with these cuts: 1.3 % slower by estimate (block2 computed again)"
std::string NextWaitsText(const WaitChoice& chosen) {
  constexpr size_t kShown = 3;
  if (chosen.next.empty()) return "";
  std::string differ;
  size_t number = 0;
  for (const auto& [block, how] : chosen.next)
    if (how != chosen.waits.at(block) && ++number <= kShown)
      differ += Cat(differ.empty() ? "" : ", ", block, " ", Described(how));
  return Cat("next best of ", chosen.compared,
             " plans with these cuts: ", PercentText(chosen.next_seconds / chosen.seconds - 1, 1),
             " slower by estimate (", differ,
             number > kShown ? Cat(" and ", number - kShown, " more otherwise") : "", ")");
}

Plan WithCuts(const Question& q, CutMoves* moves, int* tried) {
  const VariableCuts cuts = moves->At(0);
  std::optional<Plan> best;
  if (q.large) {
    best = q.budget.bytes > 0 ? Within(q, cuts) : Plan{q.given.stages, cuts, {}, true};
    if (best->fits) return *best;
  }
  Settings settings(q);
  const Setting& fastest = settings.Of(cuts);
  if (!fastest.roomy) {
    if (const auto annotated = moves->Annotated(); annotated && !q.large) settings.Of(*annotated);
    ClimbPrices(q, moves, &settings);
  }
  if (!settings.MostHopeful(kNever)) Descend(q, &settings);
  SearchHopeful(q, &settings, &best);
  if (best && best->fits && !q.large && q.budget.bytes > 0) GoBeside(q, &settings, &best);
  *tried = static_cast<int>(settings.size());
  if (!best || !best->fits) return Within(q, settings.Smallest().cuts);
  // All settings with a lower bound below the best have been searched: they take longer or do not fit.
  const Setting* next = settings.Next(best->cuts);
  if (next && next->hope >= best->waits.seconds) best->beside = NextText(*best, settings.size(), *next);
  return *best;
}

// What a plan that was given says of this session.
Decisions AsPlanned(const Asked& asked, const Decisions& plan, Decisions given) {
  const std::string who = Cat(asked.who, ": ModelOptions::plan");
  if (plan.mesh.str() != given.mesh.str())
    Fail(who, " is for the mesh ", plan.mesh.str(), ", but the model is on ", given.mesh.str());
  for (auto& [stack, blocks] : given.stages) {
    const auto said = plan.stages.find(stack);
    if (said == plan.stages.end() || asked.model().stages.count(stack)) continue;
    const auto sum = [](const std::vector<int64_t>& all) {
      return std::accumulate(all.begin(), all.end(), int64_t{0});
    };
    if (said->second.size() != blocks.size() || sum(said->second) != sum(blocks))
      Fail(who, " divides ", sum(said->second), " blocks from '", stack, "' on over ", said->second.size(),
           " stages and rounds, but there are ", sum(blocks), " for ", blocks.size());
    blocks = said->second;
  }
  const StageCuts by_options = DivisionOfOptions(*asked.source);
  for (const auto& [stack, blocks] : plan.stages) {
    const auto here = by_options.find(stack);
    if (here != by_options.end() && here->second != blocks)
      Fail(who, " divides the blocks from '", stack, "' on otherwise than Pipeline::layers");
    if (asked.training && given.stages.count(stack) == 0 && here == by_options.end())
      Fail(who, " divides blocks from '", stack, "' on, which are not there");
  }
  for (const auto& [weight, cut] : plan.cuts) {
    const auto known = asked.model().variables.find(weight);
    if (known == asked.model().variables.end()) Fail(who, " cuts weight '", weight, "', which is not there");
    for (const auto& [entry, sbp] : cut.fixed)
      if (entry > asked.model().mesh.rank() || (sbp.is_split() && sbp.axis >= known->second.shape.rank()))
        Fail(who, " cuts weight '", weight, "' by ", sbp.str(), ", but it is ", known->second.shape.str());
  }
  if (!asked.model().cuts_chosen) given.cuts = plan.cuts;
  for (const auto& [region, how] : plan.waits)
    if (asked.training && asked.source->regions().all().count(region) == 0)
      Fail(who, " has recompute=", Name(how), " for region '", region, "', which is not there");
  if (asked.training) given.waits = plan.waits;
  if (const auto& tile = asked.options.logits_tile; !tile)
    given.logits_tile = plan.logits_tile;
  else if (asked.training && *tile != plan.logits_tile)
    Fail(who, " has logits_tile=", plan.logits_tile, ", but the session's is ", *tile);
  return given;
}

// What a search has found with one choice of the logits' rows.
struct Searched {
  Plan plan;
  int tried = 0;                    // Decided::tried
  std::shared_ptr<CutMoves> moves;  // where cuts are open
  Decisions given;
};

Searched Search(const Asked& asked, const Budget& budget, const Decisions& given) {
  Searched found{.given = given};
  const CompileOptions options = CompileOptionsOf(asked, given, GraphOf(asked, given));
  Question q{asked, budget, options, given};
  if (budget.cuts || asked.training) {
    Graph placed = Passed(asked, given, options, kBeforeCuts);
    constexpr size_t kNodes = 10'000;
    q.beside = std::min(kMostSettings, kNodes / std::max(1, placed.num_nodes()));
    q.large = IsLarge(placed);
    if (q.large || (budget.waits && budget.cuts)) CheckVariables(asked, budget, placed, options);
    if (budget.cuts) found.moves = std::make_shared<CutMoves>(asked.model(), std::move(placed), options);
  }
  found.plan = found.moves ? WithCuts(q, found.moves.get(), &found.tried) : Within(q, {});
  return found;
}

// With other decisions, and the cuts that were found.
Searched WithCutsOf(const Asked& asked, const Budget& budget, Searched found, const Decisions& given) {
  const CompileOptions options = CompileOptionsOf(asked, given, GraphOf(asked, given));
  const Question q{asked, budget, options, given};
  found.given = given;
  found.plan = Within(q, found.plan.cuts);
  return found;
}

// Returns the number of rows of logits at a time that is an alternative to all; 0 if there is none, or if it
// would save little.
int64_t OtherTile(const Asked& asked, const Budget& budget, const Decisions& given) {
  if (asked.options.logits_tile || budget.bytes == 0) return 0;
  const int64_t tile = (given.mesh.Has("cuda") ? 2 : 1) * kLogitTile;  // mean_linear_cross_entropy says why
  const Graph graph = GraphOf(asked, given);
  return RowsOfLogits(graph, PartsOfTokens(asked, graph)) >= 2 * tile ? tile : 0;
}

// Estimated seconds of a step with these blocks and cuts that keeps all.
double SecondsOfAllKept(const Asked& asked, const Budget& budget, const Searched& found) {
  const CompileOptions options = CompileOptionsOf(asked, found.given, GraphOf(asked, found.given));
  const Question q{asked, budget, options, found.given};
  RecomputeSearch plans = PlansOf(q, found.plan.stages, found.plan.cuts);
  return plans.All(plans.modes().front()).seconds;
}

// All logits at once where that fits without anything computed again; else the faster of both that fits.
// Tiles are taken to be no gain by themselves: estimates do not know that each goes through memory, too.
Searched WithLogits(const Asked& asked, const Budget& budget, const Decisions& given) {
  Searched whole = Search(asked, budget, given);
  const auto& waits = whole.plan.waits.waits;
  const bool kept = std::all_of(waits.begin(), waits.end(),
                                [](const auto& wait) { return wait.second == Recompute::kNone; });
  if (whole.plan.fits && kept) return whole;
  Decisions tiled = given;
  tiled.logits_tile = OtherTile(asked, budget, given);
  if (tiled.logits_tile == 0) return whole;
  // Where cuts were found for whole logits, with the same: to search for others takes as long again.
  Searched other = whole.moves ? WithCutsOf(asked, budget, whole, tiled) : Search(asked, budget, tiled);
  if (whole.plan.fits != other.plan.fits) return whole.plan.fits ? whole : other;
  const WaitChoice &mine = whole.plan.waits, &theirs = other.plan.waits;
  if (!whole.plan.fits) return theirs.peak() < mine.peak() ? other : whole;
  const double gain = SecondsOfAllKept(asked, budget, whole) - SecondsOfAllKept(asked, budget, other);
  return theirs.seconds + std::max(0.0, gain) < mine.seconds ? other : whole;
}

}  // namespace

Decided Decide(const Asked& asked, const Budget& budget) {
  const ModelImpl& model = asked.model();
  Decisions given = asked.given;
  given.stages = DivisionOf(*asked.source);
  if (const auto& plan = asked.model().options.plan) {
    Decided decided{AsPlanned(asked, *plan, std::move(given))};
    if (!decided.decisions.cuts.empty()) decided.cuts_text = CutsText(asked.model(), nullptr, plan->cuts);
    return decided;
  }
  if (budget.bytes == 0 && !budget.cuts) return {given};
  Decided decided;
  const std::string text =
      FromProcessZero(asked.model().options.job.get(), Cat("the plan of session ", asked.options.name), [&] {
        const Searched found = WithLogits(asked, budget, given);
        const Plan& plan = found.plan;
        const std::shared_ptr<CutMoves>& moves = found.moves;
        decided.tried = found.tried;
        decided.decisions = found.given;
        decided.decisions.stages = plan.stages;
        decided.decisions.cuts = plan.cuts;
        std::erase_if(decided.decisions.cuts,
                      [&](const auto& cut) { return model.variables.count(cut.first) == 0; });
        for (const auto& [name, variable] :
             model.variables)  // also those that stay whole, whatever code says
          if (budget.cuts && !IsTrainingState(name)) decided.decisions.cuts.try_emplace(name);
        decided.decisions.waits = plan.waits.waits;
        decided.next_waits = NextWaitsText(plan.waits);
        if (moves) {
          decided.cuts_text = CutsText(asked.model(), &moves->search(), plan.cuts) + plan.beside;
          decided.cut_reasons = [&model = asked.model(), moves, cuts = plan.cuts] {
            return CutReasons(model, moves->search(), cuts);
          };
        }
        return Cat(decided.tried, "\n", ToText(SavedPlan{decided.decisions, "", ""}), "\n",
                   decided.next_waits, "\n", decided.cuts_text);
      });
  const size_t first = text.find('\n'), end = text.find("\n\n"), waits_end = text.find('\n', end + 2);
  decided.tried = std::stoi(text.substr(0, first));
  decided.decisions = ParseSavedPlan(text.substr(first + 1, end - first)).decisions;
  decided.next_waits = text.substr(end + 2, waits_end - end - 2);
  decided.cuts_text = text.substr(waits_end + 1);
  return decided;
}

}  // namespace oneflow_like
