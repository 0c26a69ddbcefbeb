// Names and layouts of another library: every box of every variable is where a direct computation says it is,
// in both directions; GPT-2 goes out and comes back bit for bit; mistakes in folders and config.json are
// named.
// ctest: asan=10
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "examples/gpt_huggingface.h"
#include "tests/oneflow_like/session_fixture.h"
#include "tests/oneflow_like/small_gpt.h"
#include "tests/oneflow_like/variable_sources.h"

namespace oneflow_like {

using namespace examples;
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class HuggingFace : public testing::Test {
 protected:
  HuggingFace() { fs::create_directories(folder_); }
  ~HuggingFace() override { fs::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/huggingface_test." + std::to_string(getpid());
};

// --- Tables ---

// One row of every kind.
NameTable ManyKinds() {
  NameTable table{.model = "many kinds"};
  table.Add({.theirs = "scalar", .ours = {{"scalar", {}}}});
  table.Add({.theirs = "same", .ours = {{"same", {3, 4, 5}}}});
  table.Add({.theirs = "merged", .ours = {{"merged", {2, 3, 4, 5}}}, .axes = {3, 1}});
  table.Add({.theirs = "one", .ours = {{"one", {3, 2, 4}}}, .axes = {3}});
  table.Add({.theirs = "linear", .ours = {{"linear", {5, 7}}}, .order = {1, 0}});
  table.Add({.theirs = "filter", .ours = {{"filter", {6, 2, 3, 4}}}, .order = {0, 3, 1, 2}});
  table.Add({.theirs = "longer", .ours = {{"longer", {3, 4}}}, .axes = {0, 2, 0}});
  table.Add({.theirs = "turned", .ours = {{"turned", {2, 3, 4, 5}}}, .axes = {2, 1, 1}, .order = {1, 2, 0}});
  table.Add({.theirs = "qkv",
             .ours = {{"q", {5, 4, 3}}, {"k", {5, 2, 3}}, {"v", {5, 2, 3}}},
             .axes = {1, 2},
             .joined = 1});
  table.Add({.theirs = "qkv_bias", .ours = {{"q_bias", {4, 3}}, {"k_bias", {2, 3}}}, .axes = {2}});
  table.Add({.theirs = "linear_qkv",
             .ours = {{"lq", {5, 4, 3}}, {"lk", {5, 2, 3}}},
             .axes = {1, 2},
             .joined = 0,
             .order = {1, 0}});
  table.Add({.theirs = "rows", .ours = {{"upper", {2, 6}}, {"lower", {3, 6}}}, .joined = 0});
  table.Repeat(2, {.theirs = "block.{i}.out", .ours = {{"block{i}/out", {4, 3, 5}}}, .axes = {2, 1}});
  for (int64_t e = 0; e < 3; ++e) {  // theirs are parts of ours, alone and joined with others
    table.Repeat(2, {.theirs = Cat("block.{i}.expert.", e),
                     .ours = {{"block{i}/experts", {4, 5}, e, 3}},
                     .order = {1, 0}});
    table.Add({.theirs = Cat("gate_up.", e),
               .ours = {{"gates", {5, 2}, e, 3}, {"ups", {5, 3}, e, 3}},
               .joined = 1});
  }
  return table;
}

// The linear index in theirs of an element of one of ours, as the words of NameRow say it.
int64_t IndexInTheirs(const NameRow& row, size_t part, int64_t index, const Dims& theirs) {
  auto flat_shape = [&](const Dims& shape) {
    std::vector<int64_t> flat(shape.begin(), shape.end());
    if (!row.axes.empty()) {
      flat.clear();
      int next = 0;
      for (int n : row.axes) {
        flat.push_back(1);
        for (int i = 0; i < n; ++i) flat.back() *= shape[next++];
      }
    }
    return flat;
  };
  std::vector<int64_t> flat = flat_shape(row.ours[part].shape), at(flat.size());
  for (size_t a = flat.size(); a-- > 0; index /= flat[a]) at[a] = index % flat[a];
  const auto ordered = [&](const std::vector<int64_t>& flat) {
    std::vector<int64_t> theirs = flat;
    for (size_t a = 0; a < row.order.size(); ++a) theirs[a] = flat[row.order[a]];
    return theirs;
  };
  at = ordered(at);
  for (size_t before = 0; before < part; ++before) {
    at[row.joined] += ordered(flat_shape(row.ours[before].shape))[row.joined];
  }
  int64_t linear = 0;
  for (size_t a = 0; a < at.size(); ++a) linear = linear * theirs[static_cast<int>(a)] + at[a];
  return linear;
}

struct BothSides {
  Tensors ours, theirs;
};

BothSides RandomSides(const NameTable& table, DType dtype) {
  BothSides sides;
  for (const NameRow& row : table.rows) {
    const Dims shape = RowLayout(row).shape;
    const HostTensor theirs = RandomTensor(sides.theirs.size(), dtype, shape);
    const size_t size = SizeOf(dtype);
    for (size_t part = 0; part < row.ours.size(); ++part) {
      const NameRow::Variable& of = row.ours[part];
      const HostTensor ours =
          sides.ours.try_emplace(of.name, HostTensor::Make(dtype, of.Whole())).first->second;
      for (int64_t i = 0; i < of.shape.elements(); ++i)
        std::memcpy(ours.as<char>() + (of.part * of.shape.elements() + i) * size,
                    theirs.as<char>() + IndexInTheirs(row, part, i, shape) * size, size);
    }
    sides.theirs.emplace(row.theirs, theirs);
  }
  return sides;
}

void ExpectRandomBoxes(VariableSource& source, const Tensors& wanted, uint64_t seed) {
  ASSERT_EQ(source.variables().size(), wanted.size());
  TensorSource direct(wanted);
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(source.variables().count(name)) << name;
    EXPECT_EQ(source.variables().at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(source.variables().at(name).shape, tensor.shape) << name;
    for (int k = 0; k < 60; ++k) {
      const Box box = RandomBox(seed++, tensor.shape);
      std::string got(box.elements() * SizeOf(tensor.dtype), 'x'), right = got;
      source.Read(name, box, got.data());
      direct.Read(name, box, right.data());
      ASSERT_EQ(got, right) << name << " " << box.str() << " seed " << seed;
    }
  }
}

TEST_F(HuggingFace, EveryBoxIsWhereADirectComputationSays) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8, DType::kInt64}) {
    const NameTable table = ManyKinds();
    const BothSides sides = RandomSides(table, dtype);
    OurNames ours(std::make_shared<TensorSource>(sides.theirs), table);
    ExpectRandomBoxes(ours, sides.ours, 1);
    TheirNames theirs(std::make_shared<TensorSource>(sides.ours), table);
    ExpectRandomBoxes(theirs, sides.theirs, 100'000);
  }
}

// What is moved at a time is less than a tensor.
TEST_F(HuggingFace, LargeTensorsAreMovedInBlocks) {
  NameTable table{.model = "large"};
  table.Add({.theirs = "qkv",
             .ours = {{"q", {700, 8, 100}}, {"k", {700, 8, 100}}, {"v", {700, 8, 100}}},
             .axes = {1, 2},
             .joined = 1});
  table.Add({.theirs = "linear", .ours = {{"linear", {900, 1300}}}, .order = {1, 0}});
  const BothSides sides = RandomSides(table, DType::kFloat32);
  const std::string path = folder_ + "/theirs.safetensors";
  TensorSource memory(sides.theirs);
  WriteTensors(memory, path, {});
  OurNames ours(std::make_shared<FileSource>(path), table);
  for (const auto& [name, tensor] : ReadAll(ours))
    EXPECT_TRUE(SameBytes(tensor, sides.ours.at(name))) << name;
  TheirNames theirs(std::make_shared<TensorSource>(sides.ours), table);
  WriteTensors(theirs, folder_ + "/again.safetensors", {});
  EXPECT_EQ(BytesOf(folder_ + "/again.safetensors"), BytesOf(path));
}

TEST_F(HuggingFace, RowsThatContradictThemselvesAreRefused) {
  auto refuse = [&](const std::string& wanted, const NameRow& row) {
    const std::string error = ErrorOf([&] { RowLayout layout(row); });
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
    EXPECT_NE(error.find("row of 't'"), std::string::npos) << error;
  };
  refuse("names no variable", {.theirs = "t"});
  refuse("is about 3 axes, but 'a' has shape [2,3]",
         {.theirs = "t", .ours = {{"a", {2, 3}}}, .axes = {1, 2}});
  refuse("does not order 3 axes", {.theirs = "t", .ours = {{"a", {2, 3, 4}}}, .order = {1, 0}});
  refuse("does not order 2 axes", {.theirs = "t", .ours = {{"a", {2, 3}}}, .order = {1, 1}});
  refuse("does not order 2 axes", {.theirs = "t", .ours = {{"a", {2, 3}}}, .order = {1, 2}});
  refuse("joins along axis 2 of 2", {.theirs = "t", .ours = {{"a", {2, 3}}, {"b", {2, 3}}}, .joined = 2});
  refuse("joins 'b', seen as [2,4], to [2,3]",
         {.theirs = "t", .ours = {{"a", {2, 3}}, {"b", {2, 4}}}, .joined = 0});
  refuse("joins 'b'", {.theirs = "t", .ours = {{"a", {2, 3}}, {"b", {3}}}, .joined = 0});
}

TEST_F(HuggingFace, WhatDoesNotFitATableIsNamed) {
  NameTable table{.model = "a model", .ignored = {"*.mask"}};
  table.Add({.theirs = "x", .ours = {{"a", {2}}, {"b", {2}}}});
  table.Add({.theirs = "y", .ours = {{"c", {3}}}});
  auto tensor = [](const Dims& shape, DType dtype = DType::kFloat32) {
    return RandomTensor(1, dtype, shape);
  };
  auto theirs = [&](const Tensors& tensors) {
    return ErrorOf([&] { OurNames names(std::make_shared<TensorSource>(tensors), table); });
  };
  EXPECT_EQ(theirs({{"x", tensor({4})}, {"y", tensor({3})}, {"0.mask", tensor({9})}}), "");
  EXPECT_EQ(
      theirs({{"x", tensor({5})}, {"z", tensor({1})}}),
      "memory does not fit a model: it lacks 'y'; it has 'z', which are unknown there; 'x' has shape [5] "
      "where [4] is meant");
  auto ours = [&](const Tensors& tensors) {
    return ErrorOf([&] { TheirNames names(std::make_shared<TensorSource>(tensors), table); });
  };
  const Tensors good = {
      {"a", tensor({2})}, {"b", tensor({2})}, {"c", tensor({3})}, {"train:adam_m/a", tensor({2})}};
  EXPECT_EQ(ours(good), "");
  Tensors bad = good;
  bad.erase("b");
  bad["d"] = tensor({1});
  bad["c"] = tensor({4});
  EXPECT_EQ(
      ours(bad),
      "memory does not fit a model: it lacks 'b'; it has 'd', which are unknown there; 'c' has shape [4] "
      "where [3] is meant");
  bad = good;
  bad["b"] = tensor({2}, DType::kBFloat16);
  EXPECT_EQ(ours(bad), "memory does not fit a model: 'b' is bf16, but what 'x' has before it is f32");
}

// Of types that are not ours, whoever needs them is told; the table's ignored ones may have any.
TEST_F(HuggingFace, OtherTypesAreRefusedWhereTheyAreNeeded) {
  NameTable table{.model = "a model", .ignored = {"*.mask"}};
  table.Add({.theirs = "x", .ours = {{"a", {1}}}});
  table.Add({.theirs = "y", .ours = {{"c", {1}}}});
  const std::string path = folder_ + "/model.safetensors";
  const auto put = [&](const std::map<std::string, std::string>& types) {
    json header;
    int at = 0;
    for (const auto& [name, type] : types) {
      header[name] = {{"dtype", type}, {"shape", {1}}, {"data_offsets", {4 * at, 4 * at + 4}}};
      ++at;
    }
    const std::string text = header.dump();
    std::string length(8, '\0');
    length[0] = static_cast<char>(text.size()), length[1] = static_cast<char>(text.size() >> 8);
    PutBytes(path, length + text + std::string(4 * at, '\0'));
    return std::make_shared<FileSource>(folder_);
  };
  const auto error = [&](const std::map<std::string, std::string>& types) {
    return ErrorOf([&] { OurNames names(put(types), table); });
  };
  for (const char* type : {"F64", "I8", "U16", "F8_E4M3", "NEW"})
    EXPECT_EQ(error({{"x", "F32"}, {"y", "F32"}, {"0.mask", type}}), "");
  EXPECT_EQ(error({{"x", "F32"}, {"y", "F64"}}),
            folder_ + " does not fit a model: 'y' is of type \"F64\", which is not known here");
  EXPECT_EQ(error({{"x", "F32"}, {"y", "F32"}, {"z", "I8"}}),
            folder_ + " does not fit a model: it has 'z', which are unknown there");
  // Where there is no table, nothing is lost without a word.
  const std::string lost = folder_ + ": 'y' is of type \"I8\", which is not known here";
  auto source = put({{"x", "F32"}, {"y", "I8"}});
  EXPECT_EQ(ErrorOf([&] { WriteTensors(*source, folder_ + "/out", {}); }), lost);
  ConvertedSource converted(source, {.dtype = DType::kBFloat16});
  EXPECT_EQ(ErrorOf([&] { WriteTensors(converted, folder_ + "/out", {}); }), lost);
  Model model(FullMesh("cpu:dp=1"));
  model.scope().Weight("x", {1}, Normal(1));
  EXPECT_NE(
      ErrorOf([&] { LoadWeights(model, *source); }).find("'y' is of type \"I8\", which is not known here"),
      std::string::npos);
  EXPECT_EQ(ErrorOf([&] { LoadWeights(model, *source, {.partial = true}); }), "");
}

// --- Types ---

TEST_F(HuggingFace, NarrowTypesAreReadAsFloatsAndBack) {
  for (DType narrow : {DType::kBFloat16, DType::kFloat16}) {
    const HostTensor tensor = RandomTensor(3, narrow, {40, 30}), count = RandomTensor(4, DType::kInt32, {3});
    auto source =
        std::make_shared<TensorSource>(Tensors{{"x", tensor}, {"count", count}, {"train:sgd_v/x", tensor}});
    auto wide =
        std::make_shared<ConvertedSource>(source, Conversion{.dtype = DType::kFloat32, .weights_only = true});
    EXPECT_EQ(wide->variables().size(), 2u);
    const Tensors read = ReadAll(*wide);
    EXPECT_TRUE(SameBytes(read.at("count"), count));
    for (int64_t i = 0; i < tensor.elements(); ++i)
      ASSERT_EQ(read.at("x").as<float>()[i], NumberAt(narrow, tensor.data.get(), i));
    ConvertedSource back(wide, {.dtype = narrow});
    EXPECT_TRUE(SameBytes(ReadAll(back).at("x"), tensor));
  }
  HostTensor large = HostTensor::Make(DType::kFloat32, {2});
  large.as<float>()[0] = INFINITY;
  large.as<float>()[1] = 70000;
  auto source = std::make_shared<TensorSource>(Tensors{{"x", large}});
  ConvertedSource half(source, {.dtype = DType::kFloat16}), brain(source, {.dtype = DType::kBFloat16});
  EXPECT_EQ(ErrorOf([&] { ReadAll(half); }), "memory: 'x' has 70000, more than f16 can hold");
  EXPECT_EQ(ErrorOf([&] { ReadAll(brain); }), "");
}

// --- GPT-2 ---

GptConfig Small() { return {.layers = 2, .width = 12, .heads = 3, .context = 10, .vocabulary = 21}; }

Tensors RandomGpt(const GptConfig& config, DType dtype = DType::kFloat32) {
  Tensors tensors;
  for (const NameRow& row : Gpt2Names(config).rows)
    for (const NameRow::Variable& variable : row.ours)
      tensors.emplace(variable.name, RandomTensor(HashName(variable.name), dtype, variable.shape));
  return tensors;
}

TEST_F(HuggingFace, TheTableNamesEveryWeightOfTheModel) {
  SmallGpt given;
  given.layers = 2;
  GptProgram program(given);
  Session session = program.MakeEvaluate();
  Tensors weights;
  for (const std::string& name : program.model().Variables())
    weights.emplace(name, program.model().Read(name));
  const GptConfig config = GptConfigOf(TensorSource(weights));
  EXPECT_EQ(config.layers, given.layers);
  EXPECT_EQ(config.width, given.width);
  EXPECT_EQ(config.heads, given.heads);
  EXPECT_EQ(config.context, given.context);
  EXPECT_EQ(config.vocabulary, given.vocabulary);
  TheirNames theirs(std::make_shared<TensorSource>(weights), Gpt2Names(config));
  EXPECT_EQ(theirs.variables().size(), 4u + 12 * 2);
}

TEST_F(HuggingFace, Gpt2GoesOutAndComesBackBitForBit) {
  const ModelFormat format = Gpt2Format();
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Tensors ours = RandomGpt(Small(), dtype), more = ours;
    more.emplace("train:updates", RandomTensor(1, DType::kInt64, {1}));
    const std::string folder = folder_ + "/" + Name(dtype) + "/";
    format.write(std::make_shared<TensorSource>(more), {}, folder);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
    const SafetensorsReader file(folder + "/model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.tensors().count("transformer.h.1.attn.c_attn.bias"), 1u);
    EXPECT_EQ(file.tensors().count("lm_head.weight"), 0u);
    Tensors read = ReadAll(*format.read(folder));
    ASSERT_EQ(read.size(), ours.size());
    for (const auto& [name, tensor] : ours) EXPECT_TRUE(SameBytes(read.at(name), tensor)) << name;
    EXPECT_NE(ErrorOf([&] {
                format.write(std::make_shared<TensorSource>(ours), {}, folder);
              }).find("it is there already"),
              std::string::npos);
  }
}

// c_attn as transformers' modeling_gpt2.py cuts it: x W + b, cut in three along the last axis, each seen as
// [heads, depth].
TEST_F(HuggingFace, QueriesKeysAndValuesAreWhereGpt2HasThem) {
  const GptConfig config = Small();
  const int64_t w = config.width, depth = w / config.heads;
  const Tensors ours = RandomGpt(config);
  TheirNames theirs(std::make_shared<TensorSource>(ours), Gpt2Names(config));
  const Tensors got = ReadAll(theirs);
  const char* parts[] = {"q", "k", "v"};
  const float* joined = got.at("transformer.h.1.attn.c_attn.weight").as<float>();
  const float* bias = got.at("transformer.h.1.attn.c_attn.bias").as<float>();
  const float* out = got.at("transformer.h.1.attn.c_proj.weight").as<float>();
  for (int part = 0; part < 3; ++part)
    for (int64_t h = 0; h < config.heads; ++h)
      for (int64_t d = 0; d < depth; ++d) {
        const std::string name = Cat("block1/attention/", parts[part]);
        for (int64_t r = 0; r < w; ++r)
          ASSERT_EQ(joined[r * 3 * w + part * w + h * depth + d],
                    ours.at(name).as<float>()[(r * config.heads + h) * depth + d]);
        EXPECT_EQ(bias[part * w + h * depth + d], ours.at(name + "_bias").as<float>()[h * depth + d]);
      }
  for (int64_t i = 0; i < w * w; ++i) EXPECT_EQ(out[i], ours.at("block1/attention/out").as<float>()[i]);
}

// As the first GPT-2 is published: no prefix, masks; and cut into two files. Gives the index's weight_map.
json PutOldShards(const Tensors& ours, const std::string& folder) {
  TheirNames theirs(std::make_shared<TensorSource>(ours), Gpt2Names(Small()));
  Tensors shards[2];
  json map;
  for (const auto& [name, tensor] : ReadAll(theirs)) {
    const int shard = static_cast<int>(HashName(name) % 2);
    const std::string old = name.substr(std::string("transformer.").size());
    shards[shard].emplace(old, tensor);
    map[old] = Cat("model-", shard, ".safetensors");
  }
  shards[0].emplace("h.0.attn.bias", RandomTensor(1, DType::kBool, {1, 1, 10, 10}));
  shards[1].emplace("h.0.attn.masked_bias", RandomTensor(1, DType::kFloat32, {}));
  shards[1].emplace("lm_head.weight", RandomTensor(1, DType::kFloat32, {21, 12}));
  map["h.0.attn.bias"] = "model-0.safetensors";
  map["h.0.attn.masked_bias"] = map["lm_head.weight"] = "model-1.safetensors";
  for (int s = 0; s < 2; ++s) {
    TensorSource source(shards[s]);
    WriteTensors(source, Cat(folder, "/model-", s, ".safetensors"), {});
  }
  return map;
}

TEST_F(HuggingFace, OldFilesAndShardsAreRead) {
  const Tensors ours = RandomGpt(Small());
  const json map = PutOldShards(ours, folder_);
  PutBytes(folder_ + "/config.json", Gpt2ConfigText(Small()));
  const std::string index = folder_ + "/model.safetensors.index.json";
  auto read = [&](const json& all) {
    PutBytes(index, all.dump());
    return ReadAll(*Gpt2Format().read(folder_));
  };
  const json good = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  Tensors got = read(good);
  ASSERT_EQ(got.size(), ours.size());
  for (const auto& [name, tensor] : ours) EXPECT_TRUE(SameBytes(got.at(name), tensor)) << name;
  auto refuse = [&](const std::string& wanted, const json& all) {
    const std::string error = ErrorOf([&] { read(all); });
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
    EXPECT_EQ(error.rfind(folder_, 0), 0u) << error;
  };
  refuse("index.json: it has no weight_map", 3);
  refuse("index.json: it has no weight_map", {{"weight_map", {1, 2}}});
  for (const char* file : {"../x", "/etc/passwd", ".", ""}) {
    json bad = good;
    bad["weight_map"]["wte.weight"] = file;
    refuse(Cat("index.json: tensor 'wte.weight' is said to be in \"", file, "\""), bad);
  }
  json bad = good;
  bad["weight_map"]["wte.weight"] = 5;
  refuse("'wte.weight' is said to be in 5", bad);
  bad["weight_map"]["wte.weight"] = "model-2.safetensors";
  refuse("model-2.safetensors: it cannot be read", bad);
  bad["weight_map"]["wte.weight"] =
      map["wte.weight"] == "model-0.safetensors" ? "model-1.safetensors" : "model-0.safetensors";
  refuse("there is no tensor 'wte.weight' in it", bad);
  bad = good;
  bad["weight_map"].erase("wpe.weight");
  refuse("it lacks 'transformer.wpe.weight'", bad);
  bad = good;
  bad["metadata"]["format"] = "oneflow_like";
  refuse("is a checkpoint of this library", bad);
  PutBytes(index, "{");
  EXPECT_NE(ErrorOf([&] { Gpt2Format().read(folder_); }).find("no weight_map"), std::string::npos);
  fs::remove(index);
  EXPECT_NE(ErrorOf([&] { Gpt2Format().read(folder_); }).find("there is neither model.safetensors nor"),
            std::string::npos);
}

// --- config.json ---

TEST_F(HuggingFace, EveryMistakeInAConfigIsNamed) {
  const std::string path = folder_ + "/config.json";
  const json good = json::parse(Gpt2ConfigText(Small()));
  auto put = [&](const json& config) { PutBytes(path, config.dump()); };
  put(good);
  const GptConfig read = ReadGpt2Config(folder_);
  EXPECT_EQ(read.layers, 2);
  EXPECT_EQ(read.width, 12);
  EXPECT_EQ(read.heads, 3);
  EXPECT_EQ(read.context, 10);
  EXPECT_EQ(read.vocabulary, 21);
  auto refuse = [&](const std::string& wanted) {
    const std::string error = ErrorOf([&] { ReadGpt2Config(folder_); });
    EXPECT_EQ(error.rfind(path + ": ", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  for (const char* name : {"n_layer", "n_embd", "n_head", "n_positions", "vocab_size"}) {
    for (const json& value : {json(0), json(-1), json(1.5), json("2"), json(nullptr), json(true),
                              json::array(), json(uint64_t{1} << 63), json(int64_t{1} << 60)}) {
      json bad = good;
      bad[name] = value;
      put(bad);
      refuse(Cat(name, " is ", value.dump(), ", but must be a whole number from 1 to "));
    }
    json bad = good;
    bad.erase(name);
    bad.erase("n_ctx");
    put(bad);
    refuse(Cat("it lacks ", std::string(name) == "n_positions" ? "n_ctx" : name));
  }
  const std::pair<const char*, json> others[] = {{"model_type", "llama"},
                                                 {"model_type", 3},
                                                 {"n_head", 5},
                                                 {"n_ctx", 11},
                                                 {"n_inner", 13},
                                                 {"activation_function", "relu"},
                                                 {"layer_norm_epsilon", 1e-6},
                                                 {"scale_attn_weights", false},
                                                 {"scale_attn_by_inverse_layer_idx", true},
                                                 {"add_cross_attention", true},
                                                 {"tie_word_embeddings", false}};
  for (const auto& [name, value] : others) {
    json bad = good;
    bad[name] = value;
    put(bad);
    refuse(Cat(name, " is ", value.dump()));
  }
  json least = good;
  for (const char* name : {"n_inner", "activation_function", "layer_norm_epsilon", "scale_attn_weights",
                           "scale_attn_by_inverse_layer_idx", "tie_word_embeddings", "n_positions"})
    least.erase(name);
  put(least);
  EXPECT_EQ(ReadGpt2Config(folder_).context, 10);
  PutBytes(path, "[]");
  refuse("it is no JSON object");
  PutBytes(path, std::string(17 << 20, ' '));
  refuse("bytes");
  fs::remove(path);
  refuse("it cannot be read");
}

TEST_F(HuggingFace, EveryBitOfAConfigMayBeWrong) {
  const std::string path = folder_ + "/config.json", good = Gpt2ConfigText(Small());
  int refused = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    PutBytes(path, bad);
    const std::string error = ErrorOf([&] { ReadGpt2Config(folder_); });
    refused += !error.empty();
    ASSERT_TRUE(error.empty() || error.rfind(path + ": ", 0) == 0) << error;
  }
  EXPECT_GT(refused, 500);
}

TEST_F(HuggingFace, AConfigThatContradictsTheTensorsIsRefused) {
  const std::string folder = folder_ + "/gpt2";
  Gpt2Format().write(std::make_shared<TensorSource>(RandomGpt(Small())), {}, folder);
  auto refuse = [&](const char* name, int64_t value, const std::string& wanted) {
    json bad = json::parse(Gpt2ConfigText(Small()));
    bad.erase("n_ctx");
    bad[name] = value;
    PutBytes(folder + "/config.json", bad.dump());
    const std::string error = ErrorOf([&] { Gpt2Format().read(folder); });
    EXPECT_EQ(error.rfind(folder + " does not fit a GPT-2 of ", 0), 0u) << error;
    EXPECT_NE(error.find(wanted), std::string::npos) << error;
  };
  refuse("n_layer", 3, "it lacks 'transformer.h.2.ln_1.weight', ");
  refuse("n_layer", 1, "it has 'transformer.h.1.attn.c_attn.bias', ");
  refuse("n_embd", 24, "'transformer.wte.weight' has shape [21,12] where [21,24] is meant");
  refuse("vocab_size", 22, "[21,12] where [22,12]");
  refuse("n_positions", 9, "[10,12] where [9,12]");
  // What is no GPT at all.
  auto write = [&](const Tensors& tensors) {
    return ErrorOf(
        [&] { Gpt2Format().write(std::make_shared<TensorSource>(tensors), {}, folder_ + "/other"); });
  };
  EXPECT_EQ(write({{"w", RandomTensor(1, DType::kFloat32, {2})}}),
            "memory: it is of no GPT, as it lacks 'embedding'");
  Tensors tensors = RandomGpt(Small());
  tensors["block0/attention/q"] = RandomTensor(1, DType::kFloat32, {12, 5, 2});
  EXPECT_NE(write(tensors).find("5 heads, which do not divide the width of 12"), std::string::npos);
  tensors["block0/attention/q"] = RandomTensor(1, DType::kFloat32, {12, 12});
  EXPECT_NE(write(tensors).find("has shape [12,12], but that of a GPT has 3 axes"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ + "/other"));
}

}  // namespace
}  // namespace oneflow_like
