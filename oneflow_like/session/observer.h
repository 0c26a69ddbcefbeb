// SessionObserver: whoever is told of a model's sessions. The report (oneflow_like/report) is one.
#pragma once

#include "oneflow_like/session/session_impl.h"

namespace oneflow_like {

class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  // The session has been compiled; a session of the same name replaces the former. In a job only process 0
  // calls it.
  virtual void AddCompiled(const Session::Impl& session) = 0;
  // The session's runtime has been closed, and its profile (Session::Impl::reported) is complete.
  virtual void AddClosed(const Session::Impl& session) = 0;
};

}  // namespace oneflow_like
