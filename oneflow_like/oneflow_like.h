// The whole public API: build a Model, Train or Evaluate it, run the Session.
#pragma once

#include "oneflow_like/checkpoint.h"
#include "oneflow_like/interruptions.h"
#include "oneflow_like/launcher.h"
#include "oneflow_like/metrics.h"
#include "oneflow_like/model.h"
#include "oneflow_like/nn.h"
#include "oneflow_like/session.h"
#include "ops/functional.h"
#include "ops/losses.h"
#include "ops/sparse.h"
#include "ops/vision.h"
