#include "oneflow_like/job/replicas_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "actor/net/talk/job.h"
#include "core/hash_bytes.h"
#include "oneflow_like/model/pieces.h"

namespace oneflow_like {
namespace {

// Ranks that hold the same piece of a variable, where there are several.
std::vector<std::vector<int>> AlikeOf(const ModelImpl& model, const ModelVariable& variable) {
  std::vector<std::vector<int>> alike;
  for (Part& part : PartsOf(model, variable))
    if (part.holders.size() > 1 && part.box == part.piece) alike.push_back(std::move(part.holders));
  return alike;
}

uint64_t HashOfPiece(const ModelImpl& model, int rank, const std::string& name) {
  const Store::VariableInfo& info = *model.store->Find(rank, name);
  if (model.store->device(rank)->kind() == "cpu")
    return HashOfBytes(model.store->Variable(rank, name), info.box.elements() * SizeOf(info.dtype));
  LocalPiece piece(model, rank, name);
  uint64_t hash = 0;
  ForEachRun(piece.box(), piece.box(), MostElements(info.dtype), [&](const Box& run) {
    hash = HashOfBytes(piece.Get(run), run.elements() * SizeOf(info.dtype), hash);
  });
  return hash;
}

std::vector<Replicas> AllReplicas(ModelImpl* model) {
  std::vector<Replicas> all;
  for (const auto& [name, variable] : model->variables) {
    const ModelVariable& made = model->Placed(name);
    for (std::vector<int>& ranks : AlikeOf(*model, made)) {
      std::vector<uint64_t> none(ranks.size());
      all.push_back({name, std::move(ranks), std::move(none)});
    }
  }
  return all;
}

// Hashes of this process's ranks, in the order of `all`, and those of all processes put in their places.
std::string HashesHere(const ModelImpl& model, const std::vector<Replicas>& all) {
  std::string bytes;
  for (const Replicas& replicas : all)
    for (int rank : replicas.ranks) {
      const std::vector<int>& here = model.store->ranks();
      if (std::find(here.begin(), here.end(), rank) == here.end()) continue;
      const uint64_t hash = HashOfPiece(model, rank, replicas.variable);
      bytes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
    }
  return bytes;
}

void Distribute(const std::vector<std::string>& texts, int hosted, std::vector<Replicas>* all) {
  std::vector<size_t> at(texts.size(), 0);
  for (Replicas& replicas : *all)
    for (size_t i = 0; i < replicas.ranks.size(); ++i) {
      const int process = replicas.ranks[i] / hosted;
      if (at[process] + sizeof(uint64_t) > texts[process].size())
        Fail("process ", process, " compares other variables; all processes must make the same model");
      std::memcpy(&replicas.hashes[i], texts[process].data() + at[process], sizeof(uint64_t));
      at[process] += sizeof(uint64_t);
    }
}

// The ranks of a process are a box of the mesh, cut alike on all processes: whole trailing axes, and an equal
// part of the axis before.
bool CutEvenly(const Mesh& mesh, int hosted) {
  int trailing = 1;
  for (int a = mesh.rank() - 1; a >= 0; --a) {
    if (hosted <= trailing * mesh.axis_size(a))
      return hosted % trailing == 0 && mesh.axis_size(a) % (hosted / trailing) == 0;
    trailing *= mesh.axis_size(a);
  }
  return true;
}

}  // namespace

std::string DifferenceOfReplicas(const Replicas& replicas) {
  std::map<uint64_t, std::vector<int>> by_hash;
  for (size_t i = 0; i < replicas.ranks.size(); ++i) by_hash[replicas.hashes[i]].push_back(replicas.ranks[i]);
  if (by_hash.size() < 2) return "";
  size_t most = 0;
  for (const auto& [hash, ranks] : by_hash) most = std::max(most, ranks.size());
  std::string odd;
  for (const auto& [hash, ranks] : by_hash)
    for (int rank : ranks)
      if (ranks.size() < most || by_hash.size() == replicas.ranks.size())
        odd += Cat(odd.empty() ? "" : ", ", rank);
  return odd.empty() ? "half of its ranks" : Cat("rank ", odd);
}

void RequireEqualReplicas(ModelImpl* model, int64_t step) {
  model->Load();
  model->WaitIdle();
  std::vector<Replicas> all = AllReplicas(model);
  Job* job = model->options.job.get();
  std::vector<std::string> texts = {HashesHere(*model, all)};
  if (job) texts = job->AllGather(Cat("replicas before step ", step), texts[0]);
  const int hosted = model->mesh.size() / static_cast<int>(texts.size());
  Distribute(texts, hosted, &all);
  // What has changed spreads from step to step: the variable that is wrong at the fewest ranks tells most.
  const Replicas* first = nullptr;
  int differing = 0;
  for (const Replicas& replicas : all) {
    const std::string odd = DifferenceOfReplicas(replicas);
    if (odd.empty()) continue;
    ++differing;
    if (first == nullptr || odd.size() < DifferenceOfReplicas(*first).size()) first = &replicas;
  }
  if (first == nullptr) return;
  std::set<std::string> hosts;
  for (int rank : first->ranks) hosts.insert(job ? job->Describe(rank / hosted) : "this process");
  std::string where;
  for (const std::string& host : hosts) where += Cat(where.empty() ? "" : ", ", host);
  const std::string others =
      differing == 1 ? "" : Cat(", and so do ", differing - 1, " other pieces of variables");
  Fail("before step ", step, ": variable '", first->variable, "' of ", DifferenceOfReplicas(*first),
       " differs from what other ranks hold of it (in ", where, ")", others,
       "; they must be equal bit for bit: a processor, its memory or a link has failed, so go on from a "
       "checkpoint without that machine");
}

std::string WithoutReplicas(ModelImpl* model) {
  const Job* job = model->options.job.get();
  const int hosted = model->mesh.size() / (job ? job->processes() : 1);
  if (!CutEvenly(model->mesh, hosted))
    Fail("check_replicas: ", job->processes(), " processes cut mesh ", model->mesh.str(),
         " unevenly, so that ranks that hold the same may differ in the last bit; use a number of processes "
         "whose ranks are whole rows of the mesh, or equal parts of one");
  int alone = 0, all = 0;
  double bytes_alone = 0, bytes = 0;
  for (const auto& [name, variable] : model->variables) {
    const ModelVariable& made = model->Placed(name);
    const double size = static_cast<double>(made.shape.elements()) * static_cast<double>(SizeOf(made.dtype));
    const bool one = AlikeOf(*model, made).empty();
    ++all;
    bytes += size;
    alone += one;
    bytes_alone += one ? size : 0;
  }
  if (alone == 0) return "";
  return Cat("check_replicas: ", alone, " of ", all, " variables (", static_cast<int64_t>(bytes_alone),
             " of ", static_cast<int64_t>(bytes),
             " bytes) are held by one rank alone and cannot be compared with another");
}

}  // namespace oneflow_like
