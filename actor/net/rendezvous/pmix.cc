#include "actor/net/rendezvous/pmix.h"

#include "core/error.h"

#ifdef OFL_HAVE_PMIX
#include <dlfcn.h>
#include <pmix.h>

#include <cstring>
#endif

namespace oneflow_like {

#ifndef OFL_HAVE_PMIX

PmixJob AskPmix(const std::function<std::string(bool)>&) {
  Fail(
      "PMIX_RANK is set, so mpirun or srun started this program, but it was built without PMIx "
      "(libpmix-dev); "
      "build it with, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

#else

namespace {

// The functions of libpmix that are used.
class Library {
 public:
  Library() {
    handle_ = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr)
      Fail("PMIX_RANK is set, so mpirun or srun started this program, but PMIx cannot be opened (", dlerror(),
           "); install libpmix2, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
    Find("PMIx_Init", &init);
    Find("PMIx_Finalize", &finalize);
    Find("PMIx_Put", &put);
    Find("PMIx_Commit", &commit);
    Find("PMIx_Fence", &fence);
    Find("PMIx_Get", &get);
    Find("PMIx_Error_string", &error_string);
  }
  // Never closed: its threads and exit handlers may outlast us.

  void Check(pmix_status_t status, const char* what) const {
    if (status != PMIX_SUCCESS)
      Fail(
          "PMIx: ", what, " failed: ", error_string(status),
          "; was this program started by mpirun or srun --mpi=pmix, and is PMIX_RANK not left over from it?");
  }

  decltype(&PMIx_Init) init;
  decltype(&PMIx_Finalize) finalize;
  decltype(&PMIx_Put) put;
  decltype(&PMIx_Commit) commit;
  decltype(&PMIx_Fence) fence;
  decltype(&PMIx_Get) get;
  decltype(&PMIx_Error_string) error_string;

 private:
  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (*function == nullptr) Fail("PMIx: libpmix.so.2 has no function ", name);
  }

  void* handle_ = nullptr;
};

// This process as a client of its PMIx server, for as long as the object lives.
class Client {
 public:
  Client() { pmix_.Check(pmix_.init(&self_, nullptr, 0), "PMIx_Init"); }
  Client(const Client&) = delete;
  ~Client() { pmix_.finalize(nullptr, 0); }

  int rank() const { return static_cast<int>(self_.rank); }

  // A number about the whole job, or about this process. `otherwise` when the server does not know.
  int Number(const char* key, bool of_job, int otherwise) const {
    pmix_proc_t who = self_;
    if (of_job) who.rank = PMIX_RANK_WILDCARD;
    pmix_value_t* value = nullptr;
    if (pmix_.get(&who, key, nullptr, 0, &value) != PMIX_SUCCESS || value == nullptr) return otherwise;
    int number = otherwise;
    if (value->type == PMIX_UINT32) number = static_cast<int>(value->data.uint32);
    if (value->type == PMIX_UINT16) number = value->data.uint16;
    free(value);
    return number;
  }

  void Publish(const char* key, std::string text) const {
    pmix_value_t value = {};
    value.type = PMIX_STRING;
    value.data.string = text.data();
    pmix_.Check(pmix_.put(PMIX_GLOBAL, key, &value), "PMIx_Put");
    pmix_.Check(pmix_.commit(), "PMIx_Commit");
  }

  void Fence() const {
    pmix_info_t collect = {};
    std::strncpy(collect.key, PMIX_COLLECT_DATA, PMIX_MAX_KEYLEN);
    collect.value.type = PMIX_BOOL;
    collect.value.data.flag = true;
    pmix_.Check(pmix_.fence(nullptr, 0, &collect, 1), "PMIx_Fence");
  }

  std::string TextOfFirst(const char* key) const {
    pmix_proc_t first = self_;
    first.rank = 0;
    pmix_value_t* value = nullptr;
    pmix_.Check(pmix_.get(&first, key, nullptr, 0, &value), "PMIx_Get");
    std::string text;
    if (value->type == PMIX_STRING && value->data.string != nullptr) text = value->data.string;
    if (value->type == PMIX_STRING) free(value->data.string);
    free(value);
    return text;
  }

 private:
  Library pmix_;
  pmix_proc_t self_ = {};
};

constexpr char kKey[] = "oneflow_like.meeting";

}  // namespace

PmixJob AskPmix(const std::function<std::string(bool)>& publish) {
  Client client;
  PmixJob job;
  job.process = client.rank();
  job.processes = client.Number(PMIX_JOB_SIZE, true, 1);
  job.locals = client.Number(PMIX_LOCAL_SIZE, true, 1);
  job.local = client.Number(PMIX_LOCAL_RANK, false, 0);
  if (job.processes == 1) return job;
  if (job.process == 0) client.Publish(kKey, publish(job.locals == job.processes));
  client.Fence();
  job.published = client.TextOfFirst(kKey);
  return job;
}

#endif

}  // namespace oneflow_like
