// What every client library is asked to do, and how its program reports.

export const MODEL = 'fetchwise'
export const QUESTION = 'What is the capital of Jamaica?'
export const SYSTEM = 'You are a helpful assistant. Answer in one sentence.'
export const TURNS = [
  { role: 'user', content: 'What is the capital of Jamaica?' },
  { role: 'assistant', content: 'The capital of Jamaica is Kingston.' },
  { role: 'user', content: 'Which sea surrounds it?' },
  { role: 'assistant', content: 'The Caribbean Sea.' },
  { role: 'user', content: 'Which currency do people pay with there?' },
]
export const ASK_FOR_JSON = 'Give the capital of Jamaica and its country as JSON.'
export const ASK_FOR_TOOL = 'Look up the population of Kingston with the tool.'
// The gateways abstain from it.
export const UNSURE = 'How long must sourdough bread bake?'
const WITHHELD = 'I do not know'

export function check(condition, about) {
  if (!condition) throw new Error(`unexpected: ${JSON.stringify(about)}`)
}

export function saysSomething(text) {
  check(typeof text === 'string' && text.trim() && !text.startsWith(WITHHELD), text)
}

// Whether the reader ignores tools and writes text, as the embedded reader does.
export const hasNoTools = (gateway) => gateway.calls_tools === 'never'

export function abstains(text) {
  check(typeof text === 'string' && text.startsWith(WITHHELD), text)
}

// The error of the second call: the key's first request is allowed.
export async function raised(call) {
  await call()
  try {
    await call()
  } catch (error) {
    return error
  }
  throw new Error('no error')
}

// Run every scenario against the gateway that the argument describes, and print the outcomes as JSON.
export async function report(scenarios) {
  const gateway = JSON.parse(process.argv[2])
  const outcomes = {}
  for (const [name, scenario] of Object.entries(scenarios)) {
    try {
      await scenario(gateway)
      outcomes[name] = ''
    } catch (error) {
      outcomes[name] = `${error.stack ?? error}\n${error.responseBody ?? ''}`.slice(0, 3000)
    }
  }
  console.log(`\n${JSON.stringify(outcomes)}`)
}
