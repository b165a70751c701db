// A value that is never destroyed. Debian's Abseil is older than this header.
#pragma once
#include <new>
#include <utility>

namespace absl {
template <class T>
class NoDestructor {
 public:
  template <class... A>
  explicit NoDestructor(A&&... a) { new (&space_) T(std::forward<A>(a)...); }
  NoDestructor(const T& x) { new (&space_) T(x); }
  NoDestructor(T&& x) { new (&space_) T(std::move(x)); }
  T& operator*() { return *get(); }
  T* operator->() { return get(); }
  T* get() { return reinterpret_cast<T*>(&space_); }

 private:
  alignas(T) unsigned char space_[sizeof(T)];
};
}  // namespace absl
