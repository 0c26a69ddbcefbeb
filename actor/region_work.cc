#include "actor/region_work.h"

#include <algorithm>

#include "core/plan/plan_values.h"

namespace oneflow_like {
namespace {

Box BoxOf(const google::protobuf::RepeatedPtrField<plan::Box>& boxes, int act) {
  return ToBox(boxes[boxes.size() == 1 ? 0 : act]);
}

RegionWork MakeWork(const CollectiveSpec& spec, const plan::Collective& collective,
                    const plan::Region& region, int act) {
  RegionWork work{ToRegion(region), {}, {}};
  auto piece = [&](int member, bool source) {
    const char* end = source ? "source" : "destination";
    const bool known = member >= 0 && member < collective.rank_size() && work.operand >= 0 &&
                       work.operand < OperandsOf(collective);
    const auto* boxes = !known   ? nullptr
                        : source ? &PieceOf(collective, work.operand, member).in()
                                 : &PieceOf(collective, work.operand, member).out();
    if (boxes == nullptr || boxes->empty())
      Fail("collective ", spec.actor, ": region ", work.box.str(), " names member ", member, " as a ", end,
           ", which has no piece there");
    Box box = BoxOf(*boxes, act);
    if (!(work.box.Intersect(box) == work.box))
      Fail("collective ", spec.actor, ": region ", work.box.str(), " lies outside the piece ", box.str(),
           " of its ", end, " ", member);
    return Piece{nullptr, box};
  };
  for (int s : work.sources) work.from.push_back(piece(s, true));
  for (int d : work.dests) work.to.push_back(piece(d, false));
  if (work.count >= collective.counts() || (work.count >= 0 && collective.rows() >= work.box.extent.rank()))
    Fail("collective ", spec.actor, ": region ", work.box.str(), " has count ", work.count, " of ",
         collective.counts(), " along axis ", collective.rows());
  if (collective.reduce().empty() && work.sources.size() > 1)
    Fail("collective ", spec.actor, ": region ", work.box.str(), " has ", work.sources.size(),
         " sources and no way to combine them");
  return work;
}

}  // namespace

void CheckMembers(const CollectiveSpec& spec, const plan::Collective& collective) {
  const int members = collective.rank_size(), pieces = collective.piece_size(), me = collective.me();
  if (collective.counts() > 0 && OperandsOf(collective) != 1)
    Fail("collective ", spec.actor, " counts rows of ", OperandsOf(collective), " operands");
  if (me < 0 || me >= members || pieces == 0 || pieces % members != 0)
    Fail("collective ", spec.actor, " has ", members, " members and ", pieces,
         " pieces, and this rank is member ", me);
}

std::vector<std::vector<RegionWork>> ReadyWork(const CollectiveSpec& spec,
                                               const plan::Collective& collective) {
  if (collective.work_size() > 1 && collective.work_size() != spec.acts)
    Fail("collective ", spec.actor, " has ", collective.work_size(), " work lists but ", spec.acts, " acts");
  std::vector<std::vector<RegionWork>> ready(std::max(1, collective.work_size()));
  for (int act = 0; act < collective.work_size(); ++act) {
    for (const plan::Region& region : collective.work(act).region()) {
      RegionWork work = MakeWork(spec, collective, region, act);
      if (!work.box.empty() && !work.to.empty()) ready[act].push_back(std::move(work));
    }
  }
  return ready;
}

}  // namespace oneflow_like
