// The whole public API: build a Model, Train or Evaluate it, run the Session.
#pragma once

#include "oneflow_like/checkpoint.h"
#include "oneflow_like/interruptions.h"
#include "oneflow_like/launcher.h"
#include "oneflow_like/metrics.h"
#include "oneflow_like/model.h"
#include "oneflow_like/nn.h"
#include "oneflow_like/session.h"
#include "oneflow_like/updates.h"
#include "ops/language/composed.h"
#include "ops/language/functional.h"
#include "ops/language/linear_algebra.h"
#include "ops/language/losses.h"
#include "ops/language/scan.h"
#include "ops/language/sparse.h"
#include "ops/language/vision.h"
#include "ops/language/volumes.h"
