/* What the parts of calling an operator share: arguments.cpp, operators.cpp, writes.cpp. */
#ifndef XT_TORCH_OPERATORS_HPP
#define XT_TORCH_OPERATORS_HPP

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "torch/torch.h"

namespace xt {

bool coerce(const c10::TypePtr &type, const xt_value &value, int64_t repeat, bool may_wrap, c10::IValue &out,
            int &cost);

std::string words_for(const xt_value &value);

struct Match {
  std::vector<c10::IValue> stack;
  int cost = 0;
  size_t fitted = 0;   /* arguments that fitted before the problem */
  std::string problem; /* empty: the schema takes the call */
};

void list_operators();

bool prepare_writes(const c10::OperatorHandle &op, Match &found);

} // namespace xt

#endif
