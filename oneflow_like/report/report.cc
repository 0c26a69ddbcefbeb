// Writes reports: a page with its figures inside.
#include "oneflow_like/report/report.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "actor/net/talk/job.h"
#include "core/error.h"
#include "core/system/file_check.h"
#include "oneflow_like/build_id.h"
#include "oneflow_like/report/figures.h"
#include "oneflow_like/report/page.h"

namespace oneflow_like {

namespace {

using Json = nlohmann::json;

const char *const kFiguresBegin = "<script type=\"application/json\" id=\"figures\">", *const kFiguresEnd =
                                                                                           "</script>";
const char *const kTitle = "@TITLE@", *const kFigures = "@FIGURES@";

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (char c : text)
    escaped += c == '<'   ? "&lt;"
               : c == '>' ? "&gt;"
               : c == '&' ? "&amp;"
               : c == '"' ? "&quot;"
                          : std::string(1, c);
  return escaped;
}

// JSON that may stand in a script: these letters occur in its strings alone.
std::string InScript(const Json& json) {
  const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (char c : text)
    c == '<' ? safe += "\\u003c" : c == '>' ? safe += "\\u003e" : c == '&' ? safe += "\\u0026" : safe += c;
  return safe;
}

std::string Page(const Json& report) {
  std::string page = kPageText;
  const auto put = [&](const std::string& mark, const std::string& text) {
    page.replace(page.find(mark), mark.size(), text);
  };
  put(kTitle, Escaped(report.at("mesh").get<std::string>()));
  put(kFigures, InScript(report));
  return page;
}

// Read again when reports are joined.
void WritePage(const std::string& path, const std::string& text) {
  ReplaceFile(path, text, Cat("report '", path, "'"));
}

std::string ReadWhole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Json* Find(Json* report, const std::string& session) {
  for (Json& s : (*report)["sessions"])
    if (s.at("name") == session) return &s;
  return nullptr;
}

}  // namespace

struct Report::Impl {
  std::string path;
  int process = 0;
  Json report;  // of process 0 as the page has it, of others measurements by session

  void Write() const { WritePage(path, process == 0 ? Page(report) : report.dump()); }
};

std::string Report::FileOf(const std::string& path, int process) {
  return process == 0 ? path : Cat(path, ".process", process);
}

Report::Report(const std::string& path, const std::string& mesh, int process)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = FileOf(path, process);
  impl_->process = process;
  const std::string why = WhyNotWritable(impl_->path);
  if (!why.empty()) Fail("report '", impl_->path, "' cannot be written: ", why);
  if (process == 0)
    impl_->report = {{"mesh", mesh},
                     {"build", Comparable(ThisBuild())},
                     {"sessions", Json::array()},
                     {"more_sessions", 0}};
  else
    impl_->report = Json::object();
  std::error_code ignored;  // of an earlier run that did not join it
  if (process > 0) std::filesystem::remove(impl_->path, ignored);
}

Report::~Report() = default;

std::shared_ptr<SessionObserver> OpenReport(const std::string& file, const std::string& mesh, int process) {
  return std::make_shared<Report>(file, mesh, process);
}

void Report::AddCompiled(const Session::Impl& session) {
  if (impl_->process > 0) return;
  Json figures = Json::parse(ReportFigures(session));
  figures["measured"] = Json::array();
  if (Json* old = Find(&impl_->report, session.options.name)) {
    *old = std::move(figures);
  } else if (impl_->report["sessions"].size() < kMostSessions) {
    impl_->report["sessions"].push_back(std::move(figures));
  } else {
    impl_->report["more_sessions"] = impl_->report["more_sessions"].get<int>() + 1;
  }
  impl_->Write();
}

void Report::AddClosed(const Session::Impl& session) {
  Json measured = Json::parse(ReportMeasurements(session));
  if (impl_->process > 0) {
    impl_->report[session.options.name] = std::move(measured);
  } else if (Json* shown = Find(&impl_->report, session.options.name)) {
    (*shown)["measured"] = Json::array({std::move(measured)});
  }
  impl_->Write();
}

std::string FiguresIn(const std::string& path) {
  const std::string page = ReadWhole(path);
  const size_t begin = page.find(kFiguresBegin),
               end = begin == page.npos ? page.npos : page.find(kFiguresEnd, begin);
  if (end == page.npos) Fail("'", path, "' is no report: it holds no figures");
  return page.substr(begin + std::strlen(kFiguresBegin), end - begin - std::strlen(kFiguresBegin));
}

void JoinReports(const std::string& path, Job* job) {
  const std::string mine = Report::FileOf(path, job->process());
  const bool wrote = std::filesystem::exists(mine);
  const std::vector<std::string> parts =
      job->AllGather("reports", job->process() > 0 && wrote ? ReadWhole(mine) : "");
  if (job->process() > 0) {
    std::error_code ignored;
    std::filesystem::remove(mine, ignored);
    return;
  }
  if (std::all_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); })) return;
  Json report = Json::parse(FiguresIn(path));
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    const Json of_process = Json::parse(part);
    for (const auto& [name, measured] : of_process.items())
      if (Json* session = Find(&report, name)) (*session)["measured"].push_back(measured);
  }
  WritePage(path, Page(report));
}

}  // namespace oneflow_like
