// Node 20 lacks what js-libp2p uses.  Imported before it.
Promise.withResolvers ??= function withResolvers () {
  let resolve, reject
  const promise = new this((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}
