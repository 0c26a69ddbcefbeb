#include "compiler/graph/rule_cache.h"

#include <mutex>
#include <type_traits>
#include <utility>
#include <variant>

#include "compiler/graph/graph.h"

namespace oneflow_like {

namespace {

// Bytes that differ where the numbers or texts that were added differ.
class Key {
 public:
  template <typename T>
  void Add(const T& number) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Add(const std::string& text) {
    Add(text.size());
    bytes_ += text;
  }
  template <typename List>
  void AddAll(const List& numbers) {
    Add(numbers.size());
    for (const auto& number : numbers) Add(number);
  }
  void Add(const Attr& attr) {
    Add(attr.index());
    if (const auto* whole = std::get_if<int64_t>(&attr)) Add(*whole);
    if (const auto* number = std::get_if<double>(&attr)) Add(*number);
    if (const auto* text = std::get_if<std::string>(&attr)) Add(*text);
    if (const auto* list = std::get_if<std::vector<int64_t>>(&attr)) AddAll(*list);
    if (const auto* blob = std::get_if<Blob>(&attr)) Add(blob->size()), Add(blob->hash());
  }
  void Add(const NdSbp& sbp) {
    Add(sbp.size());
    for (const Sbp& s : sbp) Add(s.kind), Add(s.fold), Add(s.axis), Add(s.grain);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// The operator, its attributes, and types and shapes of its operands: a rule follows from these.
void AddCall(const Graph& graph, const Node& node, Key* key) {
  key->Add(node.op);
  key->Add(node.attrs.map().size());
  for (const auto& [name, attr] : node.attrs.map()) key->Add(name), key->Add(attr);
  key->Add(node.in.size());
  for (int v : node.in) key->Add(graph.value(v).dtype), key->AddAll(graph.value(v).shape);
}

}  // namespace

const BoundRule& RuleCache::Of(const Graph& graph, const Node& node) {
  Key call;
  AddCall(graph, node, &call);
  std::string key = call.Take();
  {
    const std::shared_lock lock(mutex_);
    if (const auto known = rules_.find(key); known != rules_.end()) return known->second;
  }
  BoundRule rule = BindOp(graph.catalog().Get(node.op), graph.CallOf(node));
  const std::unique_lock lock(mutex_);
  return rules_.try_emplace(std::move(key), std::move(rule)).first->second;
}

bool RuleCache::Passes(const Graph& graph, const Node& node, const std::function<bool()>& passes) {
  Key all;
  AddCall(graph, node, &all);
  all.Add(graph.times());
  all.Add(node.kind);
  all.AddAll(node.slice.fixed);
  for (const NdSbp& want : node.want) all.Add(want);
  for (int v : node.out) {
    const Value& value = graph.value(v);
    all.Add(value.dtype), all.AddAll(value.shape), all.Add(value.sbp);
  }
  std::string key = all.Take();
  {
    const std::shared_lock lock(mutex_);
    if (passed_.count(key)) return true;
  }
  if (!passes()) return false;
  const std::unique_lock lock(mutex_);
  passed_.insert(std::move(key));
  return true;
}

}  // namespace oneflow_like
