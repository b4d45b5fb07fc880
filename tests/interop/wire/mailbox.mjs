// What arrives waits here until it is asked for.
const MAX_ITEMS = 2_000

export class Mailbox {
  constructor (name) {
    this.name = name
    this.items = []
    this.takers = []
  }

  put (item) {
    const index = this.takers.findIndex((taker) => taker.wants(item))
    if (index >= 0) {
      this.takers.splice(index, 1)[0].resolve(item)
    } else {
      this.items.push(item)
      if (this.items.length > MAX_ITEMS) this.items.shift()
    }
  }

  /** Return the first item that ``wants`` accepts, at once or within some seconds; rejects when none comes. */
  async take (wants = () => true, seconds = 60) {
    const index = this.items.findIndex(wants)
    if (index >= 0) return this.items.splice(index, 1)[0]
    return new Promise((resolve, reject) => {
      const taker = { wants, resolve: (item) => { clearTimeout(timer); resolve(item) } }
      const timer = setTimeout(() => {
        this.takers.splice(this.takers.indexOf(taker), 1)
        reject(new Error(`no ${this.name} within ${seconds} s`))
      }, seconds * 1_000)
      this.takers.push(taker)
    })
  }
}
