// Looks into checkpoints, checks them, compares them, and turns them into files that others read; needs none
// of the devices that made them.
//   build/examples/checkpoint list run

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/one_line.h"
#include "examples/gpt_huggingface.h"
#include "examples/llama_huggingface.h"
#include "examples/vit_huggingface.h"
#include "oneflow_like/checkpoint/reader.h"
#include "oneflow_like/checkpoint/tools.h"
#include "oneflow_like/flags.h"
#include "oneflow_like/program/huggingface_config.h"
#include "oneflow_like/program/precision.h"

namespace examples {
namespace {

using namespace oneflow_like;

struct Flags {
  std::string dtype, weights, format = "safetensors", model;
  bool weights_only = false;
} flags;

FlagGroup OwnGroup() {
  return {"checkpoint",
          "Checkpoints",
          {{"dtype", &flags.dtype,
            "Converts floating tensors to fp32, bf16 or fp16; empty keeps their types.", kAnyValue, kCommon},
           {"weights_only", &flags.weights_only, "Converts or compares without the state of trainings.",
            kAnyValue, kCommon},
           {"weights", &flags.weights,
            "Converts averages of weights in place of the weights: 'average', or 'train:average' of that "
            "training.",
            kAnyValue, kCommon},
           {"format", &flags.format, "Makes one safetensors file, or a folder of huggingface.", kAnyValue,
            kCommon},
           {"model", &flags.model,
            "Gives tensors of a gpt2, llama or vit of Hugging Face our names; empty keeps theirs.", kAnyValue,
            kCommon}}};
}

const char* const kUsage =
    "Looks into checkpoints and turns them into files that others read. PATH is a checkpoint, a folder of\n"
    "them (the newest is meant), a safetensors file, or a Hugging Face folder.\n"
    "\n"
    "  checkpoint list PATH          tensors, mesh, steps\n"
    "  checkpoint verify PATH        read every byte and compare checksums; ends with 1 when any is wrong\n"
    "  checkpoint diff PATH PATH     largest differences; ends with 0: none, 1: some, 2: an error\n"
    "  checkpoint convert PATH TO    TO must not exist";

struct Command {
  const char* name;
  size_t paths;
  std::set<std::string> flags;  // that it understands
};
const Command kCommands[] = {{"list", 1, {"model"}},
                             {"verify", 1, {}},
                             {"diff", 2, {"model", "weights_only"}},
                             {"convert", 2, {"model", "weights_only", "weights", "dtype", "format"}}};

const Command& Parse(const std::vector<std::string>& words) {
  const char* const kAll = "list, verify, diff or convert";
  if (words.empty()) Fail("what to do is missing: ", kAll, "; see --help");
  const auto* command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                     [&](const Command& c) { return words[0] == c.name; });
  if (command == std::end(kCommands)) Fail("'", words[0], "' is no command: write ", kAll);
  if (words.size() - 1 != command->paths)
    Fail(command->name, " takes ", command->paths, command->paths == 1 ? " path" : " paths", ", but ",
         words.size() - 1, words.size() == 2 ? " is given" : " are given");
  for (const char* flag : {"dtype", "weights_only", "weights", "format", "model"})
    if (IsGiven(flag) && !command->flags.count(flag)) Fail("--", flag, " is not for ", command->name);
  return *command;
}

void Convert(const std::string& from, const std::string& to, const ModelFormat* model) {
  Conversion conversion{.weights_only = flags.weights_only, .weights = flags.weights};
  if (!flags.dtype.empty()) conversion.dtype = PrecisionOf(flags.dtype);
  if (flags.format != "safetensors" && flags.format != "huggingface")
    Fail("--format=", flags.format, ": must be safetensors or huggingface");
  if (flags.format == "huggingface" && !model)
    Fail("--format=huggingface needs --model=gpt2, --model=llama or --model=vit");
  auto source = std::make_shared<ConvertedSource>(OpenSource(from, model), conversion);
  if (flags.format == "safetensors") return WriteOneFile(*source, to);
  model->write(source, FilesBeside(*OpenSource(from, nullptr)), to);
}

// The model that --model names. Shapes do not tell all of a Llama or a ViT, so a folder of Hugging Face's is
// made of what has a config.json: a checkpoint that keeps it, or another such folder.
std::optional<ModelFormat> FormatOf(const std::string& path) {
  if (flags.model.empty()) return std::nullopt;
  if (flags.model == "gpt2") return Gpt2Format();
  if (flags.model != "llama" && flags.model != "vit")
    Fail("--model=", flags.model, ": must be gpt2, llama or vit");
  const bool llama = flags.model == "llama";
  const std::shared_ptr<VariableSource> source = OpenSource(path, nullptr);
  if (const auto config = ConfigIn(FilesBeside(*source), source->where())) {
    if (!llama) return VitFormat(ReadVitConfig(*config));
    const auto [sizes, context] = ReadLlamaConfig(*config);
    return LlamaFormat(sizes, context);
  }
  ModelFormat format = llama ? LlamaFormat({}, 1) : VitFormat({});
  format.write = [where = source->where()](const auto&, const FolderFiles&, const std::string&) {
    Fail(where, ": --format=huggingface of a ", flags.model, " needs a checkpoint that keeps its ",
         kConfigFile, ", or a folder with one");
  };
  return format;
}

// The exit code.
int Run(const std::vector<std::string>& words) {
  const std::string command = Parse(words).name;
  const std::optional<ModelFormat> named = FormatOf(words[1]);
  const ModelFormat* model = named ? &*named : nullptr;
  if (command == "verify") return VerifyFiles(words[1], std::cout) ? 0 : 1;
  if (command == "list") {
    ListVariables(words[1], model, std::cout);
  } else if (command == "convert") {
    Convert(words[1], words[2], model);
  } else {
    const Conversion conversion{.weights_only = flags.weights_only};
    ConvertedSource a(OpenSource(words[1], model), conversion), b(OpenSource(words[2], model), conversion);
    return DiffVariables(a, b, std::cout) ? 0 : 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  std::vector<std::string> words;
  int code = 0;
  try {
    words = ParseFlags(argc, argv, kUsage, {OwnGroup()});
    code = Run(words);
    if (!std::cout.flush()) Fail("not all that was printed could be written to standard output");
  } catch (const std::exception& error) {
    std::cout << std::flush;
    std::cerr << "error: " << OnOneLine(error.what()) << std::endl;
    code = !words.empty() && words[0] == "diff" ? 2 : 1;
  }
  return code;
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return examples::Main(argc, argv); }
