#include "oneflow_like/checkpoint/tools.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <set>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "oneflow_like/checkpoint.h"
#include "oneflow_like/checkpoint/reader.h"

namespace oneflow_like {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".safetensors";

// The folder of a checkpoint that `path` means; empty: it means something else.
std::string CheckpointAt(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) Fail(path, ": there is no such file or folder");
  const std::string index = path + "/" + CheckpointIndex::kFile;
  if (fs::exists(index, error) || fs::exists(path + "/model.safetensors", error)) {
    // Hugging Face's index has the name of ours.
    return fs::exists(index, error) && CheckpointIndex::IsOurs(path) ? path : "";
  }
  const std::vector<std::string> all = Checkpoints(path);
  if (all.empty() && fs::is_directory(path, error))
    Fail(path, ": there is no complete checkpoint in it, nor tensors");
  return all.empty() ? "" : all.back();
}

// What a terminal would obey is not shown.
std::string Printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

std::string Mebibytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

// With the digits that tell two floats apart.
std::string Digits(long double number) {
  std::ostringstream text;
  if (std::isfinite(number)) {
    text << std::setprecision(9) << number;
  } else {
    StreamTo(text, number);
  }
  return text.str();
}

template <typename Map>
void PrintPairs(const char* title, const Map& map, const char* between, std::ostream& out) {
  std::string text;
  for (const auto& [key, value] : map) text += Cat(text.empty() ? "" : ", ", key, between, value);
  if (!text.empty()) out << title << Printable(text) << "\n";
}

// The largest difference that has been seen.
struct Worst {
  long double difference = 0, a = 0, b = 0;
  int64_t at = 0, differ = 0;

  void Add(long double x, long double y, int64_t index) {
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    long double d = std::fabs(x - y);
    if (std::isnan(d)) d = INFINITY;
    if (++differ == 1 || d > difference) *this = {d, x, y, index, differ};
  }
};

std::string IndexText(int64_t at, const Dims& shape) {
  Dims index = shape;
  for (int a = shape.rank() - 1; a >= 0; --a) {
    index[a] = at % shape[a];
    at /= shape[a];
  }
  return index.str();
}

Worst Compare(VariableSource& a, VariableSource& b, const std::string& name) {
  const SourceVariable &first = a.variables().at(name), &second = b.variables().at(name);
  const DType widest = SizeOf(first.dtype) > SizeOf(second.dtype) ? first.dtype : second.dtype;
  Worst worst;
  int64_t done = 0;
  std::string left, right;
  ForEachBlock({widest, first.shape}, [&](const Box& box) {
    const int64_t n = box.elements();
    left.resize(n * SizeOf(first.dtype));
    right.resize(n * SizeOf(second.dtype));
    a.Read(name, box, left.data());
    b.Read(name, box, right.data());
    if (first.dtype != second.dtype || left != right)
      for (int64_t i = 0; i < n; ++i)
        worst.Add(NumberAt(first.dtype, left.data(), i), NumberAt(second.dtype, right.data(), i), done + i);
    done += n;
  });
  return worst;
}

// What verifying finds; the same is said once.
class Findings {
 public:
  explicit Findings(std::ostream& out) : out_(out) {}
  void Wrong(const std::string& text) {
    if (said_.insert(text).second) out_ << Printable(text) << "\n";
  }
  void Note(const std::string& text) { out_ << "note: " << Printable(text) << "\n"; }
  bool well() const { return said_.empty(); }
  template <typename F>
  void Try(F&& work) {
    try {
      work();
    } catch (const Error& error) {
      Wrong(error.what());
    }
  }

 private:
  std::ostream& out_;
  std::set<std::string> said_;
};

std::string MetadataText(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata)
    text += Cat(text.empty() ? "'" : ", '", key.substr(0, 40), "': '", value.substr(0, 40), "'");
  return text.empty() ? "missing" : text;
}

// The whole of a file: `known` are the tensors that the index names.
void VerifyFile(const std::string& path, const std::set<std::string>* known, Findings* findings) {
  findings->Try([&] {
    const SafetensorsReader reader(path);
    if (known && reader.metadata() != CheckpointIndex::FileMetadata())
      findings->Wrong(Cat(path, ": the metadata in its header are ", MetadataText(reader.metadata()),
                          ", but a save writes ", MetadataText(CheckpointIndex::FileMetadata())));
    int64_t end = 0;
    const auto look_at = [&](const std::string& name, int64_t its_end) {
      end = std::max(end, its_end);
      if (known && !known->count(name))
        findings->Note(Cat(path, ": the index does not name tensor '", name, "'"));
    };
    for (const auto& [name, tensor] : reader.tensors()) look_at(name, tensor.offset + tensor.bytes());
    for (const auto& [name, tensor] : reader.others()) look_at(name, tensor.offset + tensor.bytes);
    if (end > 0 && end < reader.file().size())
      findings->Wrong(Cat(path, ": it has ", reader.file().size() - end, " bytes behind its last tensor"));
  });
}

void VerifyCheckpoint(const std::string& folder, Findings* findings, std::ostream& out) {
  CheckpointReader reader(folder);
  std::map<std::string, std::set<std::string>> files;
  int64_t bytes = 0;
  for (const auto& [name, variable] : reader.index().variables) {
    bytes += reader.variables().at(name).bytes();
    for (const StoredPiece& piece : variable.pieces) {
      files[piece.file].insert(piece.key);
      findings->Try([&, &stored = variable] {
        for (size_t block = 0; block < piece.checksums.size(); ++block)
          reader.Check(stored, piece, static_cast<int64_t>(block));
      });
    }
  }
  for (const auto& [file, tensors] : files) VerifyFile(folder + "/" + file, &tensors, findings);
  std::set<std::string> others;  // and the folders of some
  for (const auto& [file, stored] : reader.index().files) {
    findings->Try([&, &file = file] { reader.Contents(file); });
    others.insert(file.substr(0, file.find('/')));
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (file != CheckpointIndex::kFile && !files.count(file) && !others.count(file))
      findings->Note(Cat(entry.path().string(), ": the index does not name this file"));
  }
  if (findings->well())
    out << folder << ": " << reader.variables().size() << " tensors, " << Mebibytes(bytes)
        << ", every checksum fits\n";
}

void VerifyPlain(const std::string& path, Findings* findings, std::ostream& out) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    VerifyFile(path, nullptr, findings);
  } else {
    for (const fs::directory_entry& entry : fs::directory_iterator(path))
      if (entry.path().extension() == kEnding) VerifyFile(entry.path().string(), nullptr, findings);
  }
  findings->Try([&] {
    FileSource source(path);
    std::string block;
    for (const auto& entry : source.variables())
      findings->Try([&] {
        ForEachBlock(entry.second, [&](const Box& box) {
          block.resize(box.elements() * SizeOf(entry.second.dtype));
          source.Read(entry.first, box, block.data());
        });
      });
    for (const auto& [name, type] : source.others())
      findings->Note(Cat(path, ": tensor '", name, "' is of type ", type, ", which cannot be read here"));
    if (findings->well())
      out << path << ": " << source.variables().size()
          << " tensors can be read; they have no checksums that would tell wrong bytes\n";
  });
}

}  // namespace

std::shared_ptr<VariableSource> OpenSource(const std::string& path, const ModelFormat* model) {
  const std::string checkpoint = CheckpointAt(path);
  if (!checkpoint.empty()) return std::make_shared<CheckpointReader>(checkpoint);
  std::error_code error;
  if (model && fs::is_directory(path, error)) return model->read(path);
  return std::make_shared<FileSource>(path);
}

FolderFiles FilesBeside(const VariableSource& source) {
  std::error_code error;
  const auto* checkpoint = dynamic_cast<const CheckpointReader*>(&source);
  if (!checkpoint)
    return fs::is_directory(source.where(), error) ? ReadFolderFiles(source.where()) : FolderFiles();
  FolderFiles files;
  for (const auto& [name, stored] : checkpoint->index().files) files[name] = checkpoint->Contents(name);
  const auto& state = checkpoint->index().state;
  if (const auto config = state.find(kConfigFile); config != state.end()) files[kConfigFile] = config->second;
  return files;
}

void ListVariables(const std::string& path, const ModelFormat* model, std::ostream& out) {
  const std::shared_ptr<VariableSource> source = OpenSource(path, model);
  const auto* checkpoint = dynamic_cast<const CheckpointReader*>(source.get());
  out << source->where() << "\n";
  if (checkpoint) {
    const CheckpointIndex& index = checkpoint->index();
    out << "mesh       " << Printable(index.mesh) << "\nseed       " << index.seed << "\n";
    PrintPairs("next step  ", index.steps, " ", out);
    PrintPairs("state      ", index.state, "=", out);
    std::map<std::string, std::string> files;
    for (const auto& [name, file] : index.files) files[name] = Cat(file.bytes, " bytes");
    PrintPairs("files      ", files, " ", out);
  }
  size_t name_width = 6, shape_width = 5;
  int64_t bytes = 0;
  for (const auto& [name, variable] : source->variables()) {
    name_width = std::max(name_width, name.size());
    shape_width = std::max(shape_width, variable.shape.str().size());
    bytes += variable.bytes();
  }
  auto row = [&](const std::string& name, const std::string& type, const std::string& shape,
                 const std::string& pieces, const std::string& size) {
    out << std::left << std::setw(static_cast<int>(name_width)) << name << "  " << std::setw(4) << type
        << "  " << std::setw(static_cast<int>(shape_width)) << shape << "  " << std::setw(10) << pieces
        << std::right << std::setw(14) << size << "\n";
  };
  row("tensor", "type", "shape", "layout", "bytes");
  for (const auto& [name, variable] : source->variables()) {
    const size_t pieces = checkpoint ? checkpoint->index().variables.at(name).pieces.size() : 1;
    row(Printable(name), Name(variable.dtype), variable.shape.str(),
        Cat(pieces, pieces == 1 ? " piece" : " pieces"), Cat(variable.bytes()));
  }
  for (const auto& [name, type] : source->others())
    row(Printable(name), Printable(type), "not read here", "", "");
  out << source->variables().size() + source->others().size() << " tensors, " << bytes << " bytes ("
      << Mebibytes(bytes) << ")\n";
}

bool VerifyFiles(const std::string& path, std::ostream& out) {
  Findings findings(out);
  const std::string checkpoint = CheckpointAt(path);
  checkpoint.empty() ? VerifyPlain(path, &findings, out) : VerifyCheckpoint(checkpoint, &findings, out);
  return findings.well();
}

bool DiffVariables(VariableSource& a, VariableSource& b, std::ostream& out) {
  RequireAllReadable(a);
  RequireAllReadable(b);
  int64_t equal = 0, differ = 0, only = 0;
  auto say_only = [&](const VariableSource& here, const VariableSource& there) {
    for (const auto& [name, unused] : here.variables())
      if (!there.variables().count(name)) {
        out << Printable(name) << ": only in " << here.where() << "\n";
        ++only;
      }
  };
  for (const auto& [name, first] : a.variables()) {
    auto found = b.variables().find(name);
    if (found == b.variables().end()) continue;
    const SourceVariable& second = found->second;
    const std::string types =
        first.dtype == second.dtype ? Name(first.dtype) : Cat(Name(first.dtype), " and ", Name(second.dtype));
    if (first.shape != second.shape) {
      out << Printable(name) << ": shapes " << first.shape.str() << " and " << second.shape.str() << "\n";
      ++differ;
      continue;
    }
    const Worst worst = Compare(a, b, name);
    if (worst.differ == 0) {
      ++equal;
      continue;
    }
    ++differ;
    out << Printable(name) << ": " << types << first.shape.str() << ", largest difference "
        << Cat(worst.difference) << " at " << IndexText(worst.at, first.shape) << " (" << Digits(worst.a)
        << " and " << Digits(worst.b) << "), " << worst.differ << " of " << first.shape.elements()
        << " elements differ\n";
  }
  say_only(a, b);
  say_only(b, a);
  out << equal << " tensors are equal, " << differ << " differ, " << only << " are only on one side\n";
  return differ == 0 && only == 0;
}

void WriteOneFile(VariableSource& from, const std::string& to) {
  WriteBeside(to, [&](const std::string& partial) { WriteTensors(from, partial, {{"format", "pt"}}); });
}

}  // namespace oneflow_like
