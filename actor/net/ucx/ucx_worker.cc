// Configuration of UCX. What the user set in the environment (UCX_...) stays as it is; the rest is set on our
// own configuration object, so that other users of UCX in this process (MPI) do not notice.
#include "actor/net/ucx/ucx_worker.h"

#include <dlfcn.h>
#include <glog/logging.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "actor/net/rendezvous/interfaces.h"
#include "core/error.h"

namespace oneflow_like {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

const Setting kSettings[] = {
    // Shared memory transports of this UCX either refuse endpoints that report the loss of a peer, or do not
    // report it. Processes of one host have their own shared memory
    // (actor/net/shared_memory/shared_region.h).
    {"TLS", "^sysv,posix,cma,xpmem,knem"},
    // Else it complains of those names above that this build of UCX does not know; devices we check.
    {"WARN_INVALID_CONFIG", "n"},
    // This UCX aborts the process when a connection breaks while data is sent from where it lies as an active
    // message: it tells the end of that send twice. Without RDMA that is how pulled data comes, so data is
    // copied into segments instead; with segments as large as below that is not slower.
    {"ZCOPY_THRESH", "inf"},
    // Of buffers for messages that wait to be received: the largest that travel with their data fit into the
    // last, else each would take a whole segment.
    {"RX_MPOOL_SIZES", "64,1k,4k,64k,128k"},
};

// Of its TCP transport, whose settings have no prefix here.
const Setting kTcpSettings[] = {
    // A connect that blocks would stop the network's thread while a host does not answer.
    {"CONN_NB", "y"},
    // Events taken at a time. One that breaks a connection closes the other one to the same peer, and of that
    // an event taken with it would abort the process (conn_state != UCT_TCP_EP_CONN_STATE_CLOSED).
    {"MAX_POLL", "1"},
    // Data pulled over loopback in pieces of 1 MiB: 1.9 GB/s with segments of 8 KiB (the default), 6.8 with
    // 64 KiB, 8.2 with 128 KiB, 8.6 with 256 KiB. Larger socket buffers made no difference.
    {"TX_SEG_SIZE", "128k"},
    {"RX_SEG_SIZE", "128k"},
};

const char* UcxEnvironment(const std::string& name) { return std::getenv(("UCX_" + name).c_str()); }

bool IsOfUcx(const struct sigaction& action) {
  Dl_info handler = {}, ucx = {};
  return dladdr(reinterpret_cast<void*>(action.sa_handler), &handler) != 0 &&
         dladdr(reinterpret_cast<void*>(ucs_debug_disable_signal), &ucx) != 0 &&
         handler.dli_fbase == ucx.dli_fbase;
}

// When it is loaded, UCX installs handlers of its own: one that makes it talkative for SIGHUP, which then
// ends nobody, and for crashes one that prints a stack before the process may go, which its peers wait for.
// Signals are the program's: what was before UCX is there again before main() begins, so that no handler of
// the user's is lost. What the user asks UCX for in the environment stays.
[[gnu::constructor]] void LeaveSignalsAlone() {
  const bool crashes =
      UcxEnvironment("HANDLE_ERRORS") == nullptr && UcxEnvironment("ERROR_SIGNALS") == nullptr;
  for (int number : {SIGHUP, SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
    if (number == SIGHUP ? UcxEnvironment("DEBUG_SIGNO") != nullptr : !crashes) continue;
    struct sigaction now = {};
    if (sigaction(number, nullptr, &now) == 0 && IsOfUcx(now)) ucs_debug_disable_signal(number);
  }
}

void SetVariable(ucp_config_t* config, const std::string& name, const std::string& value) {
  ucs_status_t status = ucp_config_modify(config, name.c_str(), value.c_str());
  if (status != UCS_OK) {
    ucp_config_release(config);
    Fail("UCX does not take ", name, "=", value, ": ", ucs_status_string(status));
  }
}

ucp_config_t* Configure(const NetworkOptions& options) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) Fail("UCX cannot read its configuration: ", ucs_status_string(status));
  for (const Setting& setting : kSettings) {
    if (UcxEnvironment(setting.name) == nullptr) SetVariable(config, setting.name, setting.value);
  }
  // UCX complains of settings that nobody uses.
  const char* tls = UcxEnvironment("TLS");
  bool tcp = tls == nullptr || std::strstr(tls, "tcp") != nullptr || std::strstr(tls, "all") != nullptr;
  for (const Setting& setting : kTcpSettings) {
    if (tcp && UcxEnvironment(Cat("TCP_", setting.name)) == nullptr)
      SetVariable(config, setting.name, setting.value);
  }
  if (options.loopback_only) {
    SetVariable(config, "NET_DEVICES", "lo");
  } else if (!options.devices.empty()) {
    SetVariable(config, "NET_DEVICES", options.devices);
  }
  return config;
}

// What UCX complains of, a lost peer above all, we say in our own words; its own are heard with --v=1. What
// it aborts with stays where it is.
ucs_log_func_rc_t Complaint(const char* file, unsigned line, const char*, ucs_log_level_t level,
                            const ucs_log_component_config_t*, const char* message, va_list arguments) {
  if (level != UCS_LOG_LEVEL_ERROR && level != UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;
  char text[512];
  std::vsnprintf(text, sizeof text, message, arguments);
  VLOG(1) << "UCX (" << file << ":" << line << "): " << text;
  return UCS_LOG_FUNC_RC_STOP;
}

std::string Asked(const NetworkOptions& options) {
  if (options.loopback_only) return "on the loopback device";
  if (!options.devices.empty()) return "on network device " + options.devices;
  const char* tls = UcxEnvironment("TLS");
  return tls != nullptr ? Cat("with UCX_TLS=", tls) : "on any network device";
}

}  // namespace

UcxWorker::UcxWorker(const NetworkOptions& options) {
  if (!options.loopback_only) CheckNetworkDevices(options.devices);
  try {
    Open(options);
  } catch (...) {
    Close();
    throw;
  }
}

UcxWorker::~UcxWorker() { Close(); }

void UcxWorker::Open(const NetworkOptions& options) {
  static std::once_flag once;
  if (UcxEnvironment("LOG_LEVEL") == nullptr) std::call_once(once, [] { ucs_log_push_handler(Complaint); });
  auto check = [&](ucs_status_t status, const char* what) {
    if (status != UCS_OK)
      Fail("no network: UCX cannot ", what, " ", Asked(options), " (", ucs_status_string(status), ")");
  };
  ucp_config_t* config = Configure(options);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  check(status, "find a usable transport");

  // Made by one thread, used by another; never by two at a time.
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker_params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  static std::mutex making;  // so that what is new is this worker's, also where a process has several
  std::lock_guard lock(making);
  const std::vector<ListeningSocket> others = ListeningSockets();
  check(ucp_worker_create(context_, &worker_params, &worker_), "open its transports");
  for (const ListeningSocket& socket : ListeningSockets())
    if (std::find(others.begin(), others.end(), socket) == others.end()) doors_.push_back(socket);
  check(ucp_worker_get_efd(worker_, &event_fd_), "wait for events");

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  check(ucp_worker_query(worker_, &attributes), "tell its address");
  max_header_ = attributes.max_am_header;
  address_.assign(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
}

void UcxWorker::ShutDoors(bool shut) {
  const bool done = shut ? CloseDoors(doors_) : OpenDoors(doors_);
  LOG_IF(WARNING, !done) << "the ports at which UCX listens stay " << (shut ? "open" : "shut") << ": "
                         << std::strerror(errno);
}

void UcxWorker::Close() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

}  // namespace oneflow_like
