// The mailbox: every message of every poster arrives once, in the poster's order, also when the owner sleeps;
// and the list of what is ready.
// ctest: asan=10 tsan=10
#include "actor/mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "actor/executor.h"

namespace oneflow_like {
namespace {

struct Numbered : Message {
  std::vector<int>* last = nullptr;
  int poster = 0, number = 0;
  void Receive() override {
    EXPECT_EQ((*last)[poster] + 1, number);
    (*last)[poster] = number;
  }
};

void Exchange(std::chrono::nanoseconds spin, bool pause) {
  const int posters = 3, messages = pause ? 300 : 20000;
  Mailbox mailbox;
  std::vector<int> last(posters, -1);
  std::vector<std::vector<Numbered>> all(posters);
  for (int p = 0; p < posters; ++p) {
    all[p] = std::vector<Numbered>(messages);
    for (int i = 0; i < messages; ++i) {
      all[p][i].last = &last;
      all[p][i].poster = p;
      all[p][i].number = i;
    }
  }
  std::vector<std::thread> threads;
  for (int p = 0; p < posters; ++p) {
    threads.emplace_back([&, p] {
      for (Numbered& m : all[p]) {
        if (pause) std::this_thread::sleep_for(std::chrono::microseconds(20));
        mailbox.Post(&m);
      }
    });
  }
  for (int received = 0; received < posters * messages;) {
    Message* message = mailbox.Take();
    if (message == nullptr) {
      mailbox.Wait(spin);
      continue;
    }
    message->Receive();
    ++received;
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(last, std::vector<int>(posters, messages - 1));
  EXPECT_EQ(mailbox.Take(), nullptr);
}

TEST(Mailbox, ManyPosters) { Exchange(std::chrono::microseconds(5), false); }
TEST(Mailbox, ManyPostersNoSpin) { Exchange(std::chrono::nanoseconds(0), false); }
TEST(Mailbox, SleepingOwner) { Exchange(std::chrono::nanoseconds(0), true); }

TEST(Mailbox, PingPong) {
  struct Ball : Message {
    void Receive() override {}
  };
  Mailbox here, there;
  Ball ball;
  const int rounds = 2000;
  std::thread other([&] {
    for (int i = 0; i < rounds; ++i) {
      Message* m;
      while ((m = there.Take()) == nullptr) there.Wait(std::chrono::microseconds(5));
      here.Post(m);
    }
  });
  int back = 0;
  there.Post(&ball);
  while (back < rounds) {
    Message* m;
    while ((m = here.Take()) == nullptr) here.Wait(std::chrono::microseconds(5));
    if (++back < rounds) there.Post(m);
  }
  other.join();
  EXPECT_EQ(back, rounds);
}

TEST(ReadyList, OrderAndRemoval) {
  struct Item : Runnable {
    void RunOne() override {}
  };
  Item a, b, c, d;
  ReadyList list;
  EXPECT_EQ(list.Pop(), nullptr);
  list.Push(&a, false);
  list.Push(&b, false);
  list.Push(&c, true);
  list.Push(&a, true);  // is queued already: stays where it is
  EXPECT_EQ(list.size(), 3);
  list.Remove(&b);
  list.Remove(&b);
  list.Push(&d, false);
  EXPECT_EQ(list.Pop(), &c);
  EXPECT_EQ(list.Pop(), &a);
  EXPECT_EQ(list.Pop(), &d);
  EXPECT_EQ(list.Pop(), nullptr);
  list.Push(&b, false);
  EXPECT_EQ(list.Pop(), &b);
  EXPECT_EQ(list.size(), 0);
}

// An owner that sleeps in its own way is woken once for each sleep, by whoever posts first.
TEST(MailboxTest, PutTellsThatTheOwnerSleeps) {
  struct Nothing : Message {
    void Receive() override {}
  } messages[4];
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.Put(&messages[0])) << "it is awake";
  EXPECT_EQ(mailbox.Take(), &messages[0]);
  EXPECT_EQ(mailbox.Take(), nullptr);
  EXPECT_TRUE(mailbox.FallAsleep());
  EXPECT_TRUE(mailbox.Put(&messages[1]));
  EXPECT_FALSE(mailbox.Put(&messages[2])) << "somebody wakes it already";
  mailbox.WakeUp();
  EXPECT_EQ(mailbox.Take(), &messages[1]);
  EXPECT_EQ(mailbox.Take(), &messages[2]);
  EXPECT_EQ(mailbox.Take(), nullptr);
  EXPECT_TRUE(mailbox.FallAsleep());
  mailbox.WakeUp();  // by something else
  EXPECT_FALSE(mailbox.Put(&messages[3]));
  EXPECT_EQ(mailbox.Take(), &messages[3]);
  EXPECT_EQ(mailbox.Take(), nullptr);
  EXPECT_FALSE(mailbox.Put(&messages[0]));
  EXPECT_FALSE(mailbox.FallAsleep()) << "there is a message";
}

}  // namespace
}  // namespace oneflow_like
