// The rows of a trace: viewers show them in the order that the file gives, streams as the plan has them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "actor/trace.h"
#include "core/error.h"
#include "tests/actor/plan_builder.h"

namespace oneflow_like {
namespace {

TraceRecord Act(int rank, int actor, int64_t start, int64_t end) {
  TraceRecord record;
  record.rank = rank;
  record.actor = actor;
  record.start = start;
  record.end = end;
  return record;
}

// Acts under way together take further rows, which come right behind the stream's first.
TEST(TraceRows, AreInTheOrderOfStreamsAndTheirFurtherRowsBesideThem) {
  std::vector<plan::Plan> plans;
  TraceBuffer buffer(100);
  for (int rank : {0, 1}) {
    PlanBuilder b("train", rank, 2, 1);
    for (const char* name : {"feed", "product", "sum a", "sum b", "copy"})
      b.Actor(b.plan().actor_size(), name, 1);
    b.Stream("compute", {1});
    b.Stream("link", {2, 3});
    b.Stream("copies", {4});
    plans.push_back(b.plan());
    buffer.Add(Act(rank, 4, 1, 2));
    buffer.Add(Act(rank, 0, 3, 5));
    buffer.Add(Act(rank, 2, 10, 50));
    buffer.Add(Act(rank, 3, 20, 60));  // meanwhile
    buffer.Add(Act(rank, 1, 30, 40));
  }
  const std::string path = Cat(testing::TempDir(), "/trace_rows.", getpid(), ".json");
  TraceFile file(path);
  EXPECT_EQ(file.Add(plans, {buffer}, TickScale({0, 0}, {1000, 1000})), 0);

  std::ifstream in(path);
  std::map<std::pair<int, int>, std::string> names;  // by rank and row
  std::map<std::pair<int, int>, int> places;
  const std::regex name("\"thread_name\",\"pid\":(\\d+),\"tid\":(\\d+),\"args\":\\{\"name\":\"([^\"]*)\"");
  const std::regex place(
      "\"thread_sort_index\",\"pid\":(\\d+),\"tid\":(\\d+),\"args\":\\{\"sort_index\":(\\d+)");
  std::smatch found;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_search(line, found, name)) names[{std::stoi(found[1]), std::stoi(found[2])}] = found[3];
    if (std::regex_search(line, found, place))
      places[{std::stoi(found[1]), std::stoi(found[2])}] = std::stoi(found[3]);
  }
  std::remove(path.c_str());
  for (int rank : {0, 1}) {
    std::map<int, std::string> shown;
    int rows = 0;
    for (const auto& [row, text] : names) {
      if (row.first != rank) continue;
      ++rows;
      ASSERT_EQ(places.count(row), 1u) << text;
      EXPECT_TRUE(shown.emplace(places[row], text).second)
          << text << " shares its place with " << shown[places[row]];
    }
    std::vector<std::string> in_order;
    for (const auto& [at, text] : shown) in_order.push_back(text);
    EXPECT_EQ(in_order,
              (std::vector<std::string>{"compute", "link", "link 2", "copies", "feeds and fetches"}));
    EXPECT_EQ(rows, 5);
  }
}

}  // namespace
}  // namespace oneflow_like
