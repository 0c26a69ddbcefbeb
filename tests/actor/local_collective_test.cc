// Collectives of one process (actor/collective.cc) by themselves: regions larger than the blocks they are
// moved in.
#include <gtest/gtest.h>

#include "actor/collective.h"
#include "actor/runtime.h"
#include "tests/actor/plan_builder.h"

namespace oneflow_like {
namespace {

// One member of a collective of the test's own.
struct OneMember : CollectiveListener, Message {
  void Receive() override {
    void *from = in.data(), *to = out.data();
    member->Arrive({&from, 1}, {&to, 1}, 0, true);
  }
  void CollectiveWorked(int64_t, int64_t) override {}
  void CollectiveDone(bool ok) override {
    EXPECT_TRUE(ok);
    done.Signal();
  }
  std::vector<int32_t> in, out;
  plan::Collective collective;
  std::unique_ptr<CollectiveMember> member;
  Completion done;
};

// Regions of several blocks, cut along each axis, to all members: all of them and nothing else is written.
TEST(LocalCollective, LargeRegionsComeWhole) {
  const Box boxes[] = {{{1, 1, 2}, {3, 3, 70000}},
                       {{0, 1, 0}, {4, 130, 801}},
                       {{2, 0, 0}, {1, 1, 900000}},
                       {{3, 2, 1}, {1700, 2, 97}},
                       {{1, 0, 0}, {600, 3, 1000}}};
  for (const Box& box : boxes) {
    Dims shape;
    for (int a = 0; a < 3; ++a) shape.push_back(box.begin[a] + box.extent[a] + 1);
    if (box.extent[0] == 600) shape = {602, 3, 1000};  // blocks of several whole rows
    constexpr int kMembers = 3;
    OneMember members[kMembers];
    auto executor = MakeThreadExecutor(2, 1);
    std::unique_ptr<Collectives> collectives = MakeLocalCollectives();
    for (int m = 0; m < kMembers; ++m) {
      OneMember& one = members[m];
      one.in.resize(shape.elements());
      one.out.assign(shape.elements(), -1);
      for (size_t i = 0; i < one.in.size(); ++i) one.in[i] = static_cast<int32_t>(i * kMembers + m);
      one.collective.set_id(1);
      one.collective.set_me(m);
      one.collective.add_work();
      for (int k = 0; k < kMembers; ++k) {
        one.collective.add_rank(k);
        plan::Piece* piece = one.collective.add_piece();
        SetBox(piece->add_in(), Box::Whole(shape));
        SetBox(piece->add_out(), Box::Whole(shape));
      }
      if (m == 1) PlanBuilder::Region(&one.collective, box, {2}, {0, 1, 2});
      CollectiveSpec spec;
      spec.dtype = DType::kInt32;
      spec.worker = executor->worker(m % 2);
      spec.listener = &one;
      one.member = collectives->Join(spec, one.collective);
    }
    collectives->CheckComplete();
    for (int m = 0; m < kMembers; ++m) executor->worker(m % 2)->Post(&members[m]);
    for (OneMember& one : members) one.done.Wait();
    executor->Fence();
    int64_t wrong = 0, i = 0;
    for (int64_t a = 0; a < shape[0]; ++a)
      for (int64_t b = 0; b < shape[1]; ++b)
        for (int64_t c = 0; c < shape[2]; ++c, ++i) {
          const Box at{{a, b, c}, {1, 1, 1}};
          const int32_t wanted = at == box.Intersect(at) ? static_cast<int32_t>(i * kMembers + 2) : -1;
          for (OneMember& one : members) wrong += one.out[i] != wanted;
        }
    EXPECT_EQ(wrong, 0) << box.str() << " of " << shape.str();
  }
}

}  // namespace
}  // namespace oneflow_like
