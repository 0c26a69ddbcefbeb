// The logical graph: the user's nodes, plus those that passes add. One node per logical operation, in
// topological order. It is built through the GraphBuilder functions (ops/language/functional.h) and has a
// text form (compiler/graph/text.h).
//
// Besides the operators of the catalog a graph holds these nodes:
//   input, variable, fetch       the ends: feeds of a step, variables of the store, results of a step
//   train                        the end that training begins with (compiler/graph/training.h)
//   updated                      a variable's value after the step, until add_updates replaces it
//   boxing                       from its input's layout to its output's
//   accumulate, all_reduce, ...  the primitives of a lowered boxing (Primitive in sbp/boxing.h)
//   fused                        a chain of elementwise operators (ops/fused.h)
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/regions.h"
#include "compiler/graph/rule_cache.h"
#include "ops/language/tensor.h"
#include "ops/op.h"
#include "sbp/boxing.h"
#include "sbp/mesh.h"

namespace oneflow_like {

// kWeightGradient: the part of the backward pass that only updates wait for, if a schedule separates it.
enum class Phase : uint8_t { kForward, kBackward, kWeightGradient, kUpdate };
const char* Name(Phase phase);  // "forward", "backward", "weight_gradient", "update"
inline bool IsGradient(Phase phase) { return phase == Phase::kBackward || phase == Phase::kWeightGradient; }

enum class NodeKind : uint8_t {
  kOperator,
  kFused,
  kInput,
  kVariable,
  kFetch,
  kTrain,
  kUpdated,
  kBoxing,
  kPrimitive
};

// How often a node runs in a step: follows from its signatures once they are chosen (Graph::SettleRate),
// except for kRemade.
enum class Rate : uint8_t {
  kOnce,
  kEachAct,  // for each micro-batch: time cuts or sums one of its operands or results
  kRemade,   // for each micro-batch, although time is B, and nothing is kept in between: the same every
             // time (a weight gathered again), or computed from a variable that each micro-batch writes
};

// Prescribed signatures of a node, per entry of an NdSbp; absent entries are free.
using FixedSbp = std::map<int, Sbp>;

struct Value {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;         // global: the whole batch
  int producer = -1;  // node
  int output = 0;     // which of the producer's outputs
  NdSbp sbp;          // empty until signatures are chosen
};

struct Node {
  std::string name;
  std::string op;  // an operator of the catalog, or the name of another kind or of a primitive
  NodeKind kind = NodeKind::kOperator;
  Primitive primitive = Primitive::kRouted;  // of kPrimitive
  Attrs attrs;
  std::vector<int> in, out;  // values
  SourceLine line;
  Slice slice;
  bool placed = false;  // whether the slice's stage is settled (inputs and constants follow their readers)
  Phase phase = Phase::kForward;
  Rate rate = Rate::kOnce;
  FixedSbp fixed;           // of output 0: the user's annotation
  FixedSbp gradient;        // for an identity: the annotation of operand 0's gradient
  std::set<int> stored;     // entries of a variable's `fixed` for storage only, not for readers (ZeRO)
  std::vector<NdSbp> want;  // per input, the signature its kernel reads; empty until chosen
  std::vector<int> after;   // nodes that must run before this one although no value connects them
  std::string why;          // of an inserted node
  int part = -1;            // nodes with a number form a separate segment (chunk_products.cc)
};

// A graph and its mesh. Node and value ids stay valid; a removed node has an empty op.
class Graph : public GraphBuilder {
 public:
  Graph(const Catalog* catalog, Mesh mesh, int times = 1)
      : catalog_(catalog), mesh_(std::move(mesh)), times_(times), rules_(std::make_shared<RuleCache>()) {}

  const Catalog& catalog() const override { return *catalog_; }
  const Mesh& mesh() const { return mesh_; }
  int times() const { return times_; }
  void set_times(int times) { times_ = times; }
  // Sizes of an NdSbp's entries: time first, then the mesh axes.
  std::vector<int> Sizes() const;
  int64_t Parts() const;  // their product

  // GraphBuilder. PlaceOf says where the node belongs.
  std::vector<Tensor> AddNode(const std::string& op, const std::vector<Tensor>& in, const Attrs& attrs,
                              const SourceLine& line) override;
  const Dims& ShapeOf(int id) const override { return values_[id].shape; }
  DType DTypeOf(int id) const override { return values_[id].dtype; }
  const std::string& NameOf(int id) const override { return values_[id].name; }
  std::string OfAnother() const override;
  std::optional<Made> MadeBy(int id) const override;

  // While set, added nodes get this phase, line and (if given) slice: gradients get those of their operator.
  struct Origin {
    Phase phase = Phase::kForward;
    SourceLine line;
    const Slice* slice = nullptr;
    std::string scope;
    std::string of_another = {};  // OfAnother
  };
  void SetOrigin(const Origin* origin) { origin_ = origin; }

  // Adds a node without inference: for ends, boxing, and nodes of passes. `outputs` are name, dtype and
  // shape.
  struct NewValue {
    std::string name;
    DType dtype;
    Dims shape;
  };
  int AddRaw(Node node, const std::vector<NewValue>& outputs);  // the node's id; its kind is that of its op
  int AddValue(const NewValue& value, int producer, int output);
  Regions& regions() { return regions_; }
  const Regions& regions() const { return regions_; }
  // Add ends: a result of the step; the loss to minimise (compiler/graph/training.h).
  int AddFetch(const std::string& name, int value);
  int AddTrain(int loss, const SourceLine& line);

  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_values() const { return static_cast<int>(values_.size()); }
  Node& node(int id) { return nodes_[id]; }
  const Node& node(int id) const { return nodes_[id]; }
  Value& value(int id) { return values_[id]; }
  const Value& value(int id) const { return values_[id]; }
  const Node& producer(int value) const { return nodes_[values_[value].producer]; }
  bool alive(int id) const { return !nodes_[id].op.empty(); }
  void Remove(int id) { nodes_[id].op.clear(); }

  // Sets the node's rate, except for a variable, whose rate is given. Called after signatures are chosen, and
  // for each node that is added later.
  void SettleRate(int node) {
    if (nodes_[node].kind != NodeKind::kVariable) nodes_[node].rate = RateOf(node);
  }
  Rate RateOf(int node) const;
  // The number of acts, of a node that runs for each micro-batch, that share one instance of the value.
  int PeriodOf(int value) const {
    return values_[value].sbp[0].is_broadcast() && !Remade(value) ? times_ : 1;
  }
  // Whether the value is B over time but has an instance of its own for each act.
  bool Remade(int value) const {
    const NdSbp& sbp = values_[value].sbp;
    return producer(value).rate == Rate::kRemade && !sbp.empty() && sbp[0].is_broadcast();
  }
  // Whether the node writes a variable in each micro-batch, as its assign requested.
  bool WritesEach(int node) const;

  // Live nodes in topological order (values and `after`), stable: by id where both orders are possible.
  // Throws Error naming the nodes of a cycle.
  std::vector<int> Order() const;
  // Per value, the live nodes that read it (once per use).
  std::vector<std::vector<int>> Readers() const;
  // Removes live nodes from which none of `roots` can be reached.
  void KeepOnly(const std::vector<int>& roots);
  // Renumbers all live nodes in this order, so that Order() returns it where edges allow it. Ids of nodes
  // change, those of values do not.
  void Renumber(const std::vector<int>& order);
  // Adds a copy of node `of`, whose outputs have the same types, shapes and signatures, and names of their
  // own that end in `suffix`; `copy` is `of` with the intended changes. Its rate is settled.
  int AddCopy(int of, Node copy, const std::string& suffix);
  // Adds a node that reads value `v` as it is. Returns its result, which has this type and signature, the
  // value's shape, and its name with `suffix`.
  int AddReader(Node node, int v, const std::string& suffix, DType dtype, const NdSbp& sbp);
  // The same, with the value's own type and signature.
  int AddReader(Node node, int v, const std::string& suffix) {
    const Value value = values_[v];
    return AddReader(std::move(node), v, suffix, value.dtype, value.sbp);
  }
  // Gives the node of an operator with OpDef::keep the outputs that its gradient reads.
  void Keep(int node);
  // The value of which this one is another form: the operand of a node with one operand, or the operand of a
  // collective that becomes this value; -1: none.
  int OperandBehind(int value) const;
  // Whether a node's result is its operand's bytes.
  bool IsView(int node) const;
  // The value whose bytes this one has: itself, or behind views what they are views of.
  int BehindViews(int value) const;
  // Whether the value lies in the memory of the host: a variable that place_on_host has put there, what
  // "to_host" gives, and views of these.
  bool OnHost(int value) const;
  // The outputs of a node that replace a variable, and the operands which these variables are. An update
  // whose state waits on the host has another result in its place.
  std::vector<std::pair<int, int>> InPlace(int node) const;
  // Whether a node is a product, an attention or a convolution: these take most of a step's time.
  bool IsHeavy(int node) const;
  // The line of profiles that counts its time: "boxing", the category of the operator's entry, or empty:
  // other kernels.
  std::string CategoryOf(const Node& node) const;
  // "matmul 'block0/up' at gpt.cc:31"
  std::string Describe(int node) const { return Describe(nodes_[node]); }
  std::string Describe(const Node& node) const;
  // The same for errors: "sort at gpt.cc:31, in its argsort 'argsort'" if the user called another
  // function.
  std::string DescribeForUser(int node) const { return DescribeForUser(nodes_[node]); }
  std::string DescribeForUser(const Node& node) const;
  // The node as an OpCall, for the functions of its catalog entry; the node must outlive it.
  OpCall CallOf(const Node& node) const;
  // REQUIRES: an operator of the catalog.
  const BoundRule& RuleOf(int node) const { return rules_->Of(*this, nodes_[node]); }
  RuleCache& rules() const { return *rules_; }
  std::string UniqueName(const std::string& wanted);
  Layout LayoutOf(int value) const { return {producer(value).slice, values_[value].sbp}; }

 protected:
  struct Place {
    std::string scope;  // "h0/attention/", or empty
    Slice slice;
    bool placed = false;  // Node::placed
  };
  // Where the next node, one that reads `in`, belongs if no Origin says so. It does not depend on the order
  // of the operands: the slice is, per mesh axis, the highest coordinate to which they are fixed; the scope
  // is, among the operands that have one, that of the largest ClaimOf: of a weight, else of what was made
  // last.
  virtual Place PlaceOf(const std::vector<Tensor>& in);
  // A weight counts for more than other operands, whenever it was requested: in matmul(relu(h), w) the order
  // in which C++ evaluates the two does not matter.
  std::pair<bool, int> ClaimOf(int value) const;

 private:
  const Catalog* catalog_;
  Mesh mesh_;
  int times_;
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  Regions regions_;
  std::map<std::string, int> names_;  // how often a name was requested
  const Origin* origin_ = nullptr;
  std::shared_ptr<RuleCache> rules_;  // also of copies
};

// Returns a node that passes insert: an operator on the slice, and with the phase and line, of another node.
Node NodeLike(const Node& other, const std::string& op);
// "h0/attention/q" -> "h0/attention/"; empty without a '/'.
std::string ScopeOf(const std::string& name);
// The kind of the op with this name; for a primitive also which one.
NodeKind KindOf(const std::string& op, Primitive* primitive = nullptr);
// Whether a node computes nothing itself: the ends of the graph.
bool IsEnd(const Node& node);
// Primitives of a lowered boxing.
bool IsLocalBoxing(const Node& node);  // on a rank alone
bool IsCollective(const Node& node);   // data crosses ranks
// A boxing, or a collective, may move only the first rows of each part of its operand [r p c ..] (exchange in
// ops/rank_routes.cc). Returns the value that says how many, i32[p r]; -1: it moves all.
inline int CountsOf(const Node& node) {
  const bool moves = node.kind == NodeKind::kBoxing || IsCollective(node);
  return moves && node.in.size() > node.out.size() ? node.in.back() : -1;
}
// Whether a product adds up its first result over the micro-batches (fuse_accumulate.cc): that is B over
// time, although the product's rule makes it Partial.
bool SumsOverTime(const Node& node);

// Copies between the memory of a device and that of its host: operators of the catalog that place_on_host and
// offload_activations insert. The attribute kOnHost of a variable says that it lies on the host.
inline constexpr char kToHost[] = "to_host", kFromHost[] = "from_host", kAssignHost[] = "assign_host",
                      kOnHost[] = "on_host";
inline bool IsHostCopy(const Node& node) {
  return node.op == kToHost || node.op == kFromHost || node.op == kAssignHost;
}

// The part of its bytes that a boxing, or a collective, is expected to move: 1 but for counted rows, whose
// exchange says (attribute "share").
double ShareMoved(const Node& node);
// Approximate bytes of a rank's piece of a value; `sizes` are Graph::Sizes.
double PieceBytes(const Value& value, const std::vector<int>& sizes);
// Bytes of the largest piece of a value with this signature.
double LargestPieceBytes(const Value& value, const NdSbp& sbp, const std::vector<int>& sizes);

// Node::why of a recomputed node begins with kComputedAgain, that of a repeated message with kSentAgain.
inline constexpr char kComputedAgain[] = "computed again for the gradients of ";
inline constexpr char kSentAgain[] = "sent again for the gradients of ";
// Node::why of a product in chunks beside a collective begins with kInChunks, that of a gradient that is
// computed while sums of another product are sent with kPutBehind.
inline constexpr char kInChunks[] = "chunk ", kPutBehind[] = "put behind ";

}  // namespace oneflow_like
