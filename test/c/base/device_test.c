#include "core/base/device.h"

#include <string.h>

#include "check.h"

static void types_have_names(void) {
  CHECK(!strcmp(xt_device_type_name(XT_DEVICE_CUDA), "cuda") && !strcmp(xt_device_type_name(XT_DEVICE_OTHER), "other"));
  CHECK(xt_device_type_from_name("xpu") == XT_DEVICE_XPU && xt_device_type_from_name("gpu") == XT_DEVICE_OTHER);
  CHECK(xt_device_type_from_name("privateuseone") == XT_DEVICE_PRIVATE);
}

static void a_backend_has_a_name_of_its_own(void) {
  char text[XT_DEVICE_NAME + 16];
  xt_device_set_private_name("npu");
  CHECK(xt_device_type_from_name("npu") == XT_DEVICE_PRIVATE);
  CHECK(xt_device_type_from_name("privateuseone") == XT_DEVICE_PRIVATE);
  CHECK(!strcmp(xt_device_type_name(XT_DEVICE_PRIVATE), "npu"));
  xt_device_location((xt_device){XT_DEVICE_PRIVATE, 1}, text, sizeof text);
  CHECK(!strcmp(text, "npu:1"));
  xt_device_set_private_name(NULL);
  CHECK(xt_device_type_from_name("npu") == XT_DEVICE_OTHER);
}

int main(void) { return RUN_TESTS("device", types_have_names, a_backend_has_a_name_of_its_own); }
