// Open MPI's collectives, measured as ours are:
//   mpirun -np 2 --mca pml ob1 --mca btl self,vader build/tests/mpi_collectives
#include <gflags/gflags.h>
#include <mpi.h>
#include <unistd.h>

#include <cstring>

#include "tests/peers/collectives.h"

namespace oneflow_like::peers {
namespace {

// The tensors of one case. All-reduce and broadcast work in place, as their users mostly call them and as is
// fastest.
class MpiCase {
 public:
  MpiCase(const Case& c, int ranks, int rank)
      : c_(c), ranks_(ranks), rank_(rank), in_(InElements(c, ranks)), out_(OutElements(c, ranks)) {
    in_place_ = c.collective == "all_reduce" || c.collective == "broadcast";
    Fill(c, ranks, rank, in_place_ ? out_.data() : in_.data());
  }

  void Run() {
    const int block = static_cast<int>(c_.bytes / 4 / ranks_), all = block * ranks_;
    if (c_.collective == "all_reduce")
      MPI_Allreduce(MPI_IN_PLACE, out_.data(), all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (c_.collective == "all_gather")
      MPI_Allgather(in_.data(), block, MPI_FLOAT, out_.data(), block, MPI_FLOAT, MPI_COMM_WORLD);
    else if (c_.collective == "reduce_scatter")
      MPI_Reduce_scatter_block(in_.data(), out_.data(), block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (c_.collective == "broadcast")
      MPI_Bcast(out_.data(), all, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else
      MPI_Alltoall(in_.data(), block, MPI_FLOAT, out_.data(), block, MPI_FLOAT, MPI_COMM_WORLD);
  }

  void Check() const { CheckResult(c_, ranks_, rank_, out_.data()); }
  // Sums in place would grow without end.
  void Clear() {
    std::memset(in_.data(), 0, in_.size() * sizeof(float));
    std::memset(out_.data(), 0, out_.size() * sizeof(float));
  }

 private:
  const Case c_;
  const int ranks_, rank_;
  bool in_place_ = false;
  std::vector<float> in_, out_;
};

void RoundTrips(int rank) {
  float value = 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    if (rank == 0) MPI_Send(&value, 1, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_FLOAT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(&value, 1, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
  }
}

// Whatever a library call has left to send goes out before this process waits outside of MPI, where nothing
// would move it on.
bool BeginAfterBarrier(Measurement* m) {
  MPI_Barrier(MPI_COMM_WORLD);
  return m->Begin();
}

void MeasureAll() {
  int ranks = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  BindToCore(rank);
  char file[256] = {};
  if (rank == 0) std::strncpy(file, Meeting::MakeFile().c_str(), sizeof(file) - 1);
  MPI_Bcast(file, sizeof(file), MPI_CHAR, 0, MPI_COMM_WORLD);
  Meeting meeting(file, ranks);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) unlink(file);

  for (const Case& c : Cases(ranks)) {
    MpiCase mpi(c, ranks, rank);
    mpi.Run();
    mpi.Check();
    mpi.Clear();
    Measurement m(&meeting, rank);
    while (BeginAfterBarrier(&m)) {
      mpi.Run();
      m.End();
    }
    if (rank == 0) Print("mpi", ranks, c, m.result());
  }
  if (!MessageWanted() || ranks != 2) return;
  Measurement m(&meeting, rank);
  while (BeginAfterBarrier(&m)) {
    RoundTrips(rank);
    m.End();
  }
  if (rank == 0) Print("mpi", ranks, {"message", 4}, m.result(2 * kRoundTrips));
}

}  // namespace
}  // namespace oneflow_like::peers

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  oneflow_like::peers::MeasureAll();
  MPI_Finalize();
  return 0;
}
