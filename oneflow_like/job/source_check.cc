#include "oneflow_like/job/source_check.h"

#include <algorithm>
#include <sstream>

#include "actor/net/talk/job.h"
#include "core/error.h"
#include "core/hash_bytes.h"
#include "oneflow_like/job/agreement.h"

namespace oneflow_like {
namespace {

// Three lines a fact.
std::string TextOfFacts(const std::vector<SourceFact>& facts) {
  std::string text;
  for (const SourceFact& fact : facts)
    for (std::string line : {fact.what, fact.value, fact.where}) {
      std::replace(line.begin(), line.end(), '\n', '?');
      text += line + '\n';
    }
  return text;
}

std::vector<SourceFact> FactsOfText(const std::string& text) {
  std::vector<SourceFact> facts;
  std::istringstream in(text);
  for (SourceFact fact;
       std::getline(in, fact.what) && std::getline(in, fact.value) && std::getline(in, fact.where);)
    facts.push_back(fact);
  return facts;
}

// Empty, or the difference. Texts are exchanged where hashes differ.
std::string DifferenceBetweenProcesses(Job* job, const std::string& what,
                                       const std::vector<SourceFact>& facts, const std::string& read) {
  std::string compared;
  for (const SourceFact& fact : facts) compared += fact.what + '\n' + fact.value + '\n';
  const std::vector<std::string> hashes =
      job->AllGather(what, Hexadecimal(HashOfBytes(compared.data(), compared.size())));
  if (std::all_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash == hashes[0]; }))
    return "";
  std::vector<std::vector<SourceFact>> all;
  for (const std::string& text : job->AllGather(Cat(what, ", in full"), TextOfFacts(facts)))
    all.push_back(FactsOfText(text));
  return DifferenceOfSources(all, read);
}

}  // namespace

std::string DifferenceOfSources(const std::vector<std::vector<SourceFact>>& all, const std::string& read) {
  for (size_t p = 1; p < all.size(); ++p) {
    const std::vector<SourceFact>&mine = all[0], &theirs = all[p];
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      auto is = [&](const std::vector<SourceFact>& facts) {
        if (i >= facts.size()) return std::string("nothing");
        return Cat(facts[i].value, facts[i].where.empty() ? "" : Cat(" (", facts[i].where, ")"));
      };
      const std::string what = i < mine.size() ? mine[i].what : theirs[i].what;
      if (i < mine.size() && i < theirs.size() && theirs[i].what == what && theirs[i].value == mine[i].value)
        continue;
      if (i < mine.size() && i < theirs.size() && theirs[i].what != what)
        return Cat("process ", p, " ", read, " than process 0: it has ", theirs[i].what, ", ", is(theirs),
                   ", where process 0 has ", what, ", ", is(mine));
      return Cat("process ", p, " ", read, " than process 0: ", what, " is ", is(theirs), " there and ",
                 is(mine), " in process 0");
    }
  }
  return "";
}

void RequireSameData(Job* job, const std::string& who, const std::vector<SourceFact>& facts) {
  if (!job) return;
  const std::string difference =
      DifferenceBetweenProcesses(job, Cat("data of ", who), facts, "reads other data");
  if (!difference.empty())
    Fail(who, ": ", difference,
         "; give all processes the same data, or say that they have different parts of it on purpose "
         "(--compare_data=false, DataPipelineOptions::compare)");
}

void RequireSameWeights(Job* job, const std::string& path, const std::vector<SourceFact>& facts) {
  if (!job) return;
  const std::string difference = DifferenceBetweenProcesses(job, "weights", facts, "reads other weights");
  if (!difference.empty()) Fail(path, ": ", difference, "; give all processes the same files");
}

}  // namespace oneflow_like
