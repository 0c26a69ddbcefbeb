#include "oneflow_like/job/replicas_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "actor/net/talk/job.h"
#include "core/hash_bytes.h"
#include "core/random.h"
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

// A piece of a variable, by the variable's number and a hash of the box.
using PieceKey = std::pair<uint64_t, uint64_t>;
struct HeldPiece {
  uint64_t variable = 0, box = 0;
  int rank = 0;  // the first that holds it
};

std::vector<HeldPiece> PiecesHere(const ModelImpl& model, const std::vector<std::string>& names) {
  std::vector<HeldPiece> pieces;
  for (uint64_t v = 0; v < names.size(); ++v) {
    std::set<uint64_t> boxes;
    for (int rank : model.store->ranks()) {
      const Store::VariableInfo* info = model.store->Find(rank, names[v]);
      if (info == nullptr || info->box.empty()) continue;
      const uint64_t box = HashName(info->box.str());
      if (boxes.insert(box).second) pieces.push_back({v, box, rank});
    }
  }
  return pieces;
}

std::string BytesOf(const std::vector<uint64_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(uint64_t)};
}

std::vector<uint64_t> NumbersOf(const std::string& bytes) {
  std::vector<uint64_t> numbers(bytes.size() / sizeof(uint64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(uint64_t));
  return numbers;
}

std::vector<PieceKey> KeysOf(const std::string& bytes) {
  const std::vector<uint64_t> numbers = NumbersOf(bytes);
  std::vector<PieceKey> keys;
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) keys.emplace_back(numbers[i], numbers[i + 1]);
  return keys;
}

}  // namespace

void RequireSameBeginnings(ModelImpl* model, const std::string& session, const std::set<std::string>& all) {
  model->WaitIdle();
  std::vector<std::string> names;
  for (const std::string& name : all) {
    auto found = model->variables.find(name);
    if (found != model->variables.end() && !std::exchange(found->second.compared, true))
      names.push_back(name);
  }
  if (names.empty()) return;
  Job* job = model->options.job.get();
  const std::string what = Cat("variables before the first step of session ", session);
  const std::vector<HeldPiece> here = PiecesHere(*model, names);
  std::vector<uint64_t> numbers;
  for (const HeldPiece& piece : here) numbers.insert(numbers.end(), {piece.variable, piece.box});
  const std::vector<std::string> held = job->AllGather(what, BytesOf(numbers));
  std::map<PieceKey, int> holders;  // processes
  for (const std::string& text : held)
    for (const PieceKey& key : KeysOf(text)) ++holders[key];
  if (std::none_of(holders.begin(), holders.end(), [](const auto& piece) { return piece.second > 1; }))
    return;
  numbers.clear();
  for (const HeldPiece& piece : here)
    if (holders.at({piece.variable, piece.box}) > 1)
      numbers.push_back(HashOfPiece(*model, piece.rank, names[piece.variable]));
  const std::vector<std::string> hashes = job->AllGather(what + ", their hashes", BytesOf(numbers));
  std::map<PieceKey, std::pair<size_t, uint64_t>> first;  // process and hash
  std::map<uint64_t, std::pair<size_t, size_t>> differ;   // by variable, two processes
  for (size_t p = 0; p < held.size(); ++p) {
    const std::vector<uint64_t> theirs = NumbersOf(hashes[p]);
    size_t at = 0;
    for (const PieceKey& key : KeysOf(held[p])) {
      if (holders.at(key) < 2) continue;
      const uint64_t hash = theirs.at(at++);
      const auto [seen, fresh] = first.try_emplace(key, p, hash);
      if (seen->second.second != hash) differ.try_emplace(key.first, p, seen->second.first);
    }
  }
  if (differ.empty()) return;
  const auto& [variable, processes] = *differ.begin();
  const std::string& name = names[variable];
  const std::string& origin = model->variables.at(name).origin;
  const std::string others =
      differ.size() == 1 ? "" : Cat(", and so do ", differ.size() - 1, " other variables");
  if (!origin.empty())
    Fail("session ", session, ": process ", processes.first, " read other weights from ", origin,
         " than process ", processes.second, ": variable '", name, "' differs", others,
         "; give all processes the same files");
  Fail("session ", session, ": variable '", name, "' begins with other values in process ", processes.first,
       " than in process ", processes.second, others,
       "; what Model::Write writes must be the same on all processes");
}

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
