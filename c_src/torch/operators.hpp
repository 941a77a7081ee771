/* Declarations shared by the files that call operators: arguments.cpp, writes.cpp and operators.cpp. */
#ifndef XT_TORCH_OPERATORS_HPP
#define XT_TORCH_OPERATORS_HPP

#include <ATen/core/dispatch/Dispatcher.h>

#include <forward_list>
#include <string>
#include <vector>

#include "torch/torch.h"

namespace xt {

/* The arguments of a call, one for each parameter of the schema; afterwards its results. */
using Stack = std::vector<c10::IValue>;

/* ---- arguments.cpp ---- */

/* Converts a value to the type of a parameter and adds the cost of the conversion. `repeat` is the length n of a
 * parameter of type int[n], otherwise 0. `may_wrap` allows a number to become a tensor. Returns false if the value does
 * not have the type. */
bool convert_argument(const c10::TypePtr &type, const xt_value &value, int64_t repeat, bool may_wrap, c10::IValue &out,
                      int &cost);

/* Describes a value for an error message: "the integer 5". */
std::string describe_value(const xt_value &value);

/* ---- writes.cpp ---- */

/* The memory that an operator may write. It is registered (core/memory/frozen.h) until the object is destroyed, so that
 * a binary made during the call does not share it. */
class Writes {
public:
  Writes() = default;
  Writes(const Writes &) = delete;
  ~Writes();

  /* Prepares the arguments that the operator writes to, and returns whether there are any. Fails if one of them is
   * frozen. The others are replaced by shallow copies: an operator that changes sizes or strides in place (t_,
   * squeeze_, resize_) then changes the copy, which it returns, and not a tensor that others use. */
  bool prepare(const c10::OperatorHandle &op, Stack &stack);

private:
  bool add(const at::Tensor &tensor, bool can_grow);
  void check(const at::Tensor &tensor, const c10::FunctionSchema &schema, const std::string &parameter, bool can_grow);
  std::forward_list<xt_frozen> ranges; /* at fixed addresses */
};

/* ---- checks.cpp ---- */

/* Fails if the operator is not available. */
void check_allowed(const std::string &full);

/* Whether check_arguments has something to check, which takes longer than many calls. */
bool needs_checks(const c10::FunctionSchema &schema);

/* Checks arguments that LibTorch would not check. Fails also if this overload is not available. */
void check_arguments(const c10::FunctionSchema &schema, const Stack &stack);

/* ---- operators.cpp ---- */

/* Builds the table of operators. */
void load_operators();

} // namespace xt

#endif
