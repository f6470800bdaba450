// `openai` for JavaScript.
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import {
  ASK_FOR_JSON, ASK_FOR_TOOL, MODEL, QUESTION, SYSTEM, TURNS, UNSURE, abstains, check, hasNoTools, raised, report, saysSomething,
} from './scenarios.mjs'

const Capital = z.object({ capital: z.string().max(20), country: z.string().max(20) })
const tool = {
  type: 'function',
  function: {
    name: 'population',
    description: 'Look up the population of a city.',
    // Without it vLLM accepts any JSON as arguments.
    strict: true,
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', maxLength: 20 } },
      required: ['city'],
      additionalProperties: false,
    },
  },
}
const forced = { type: 'function', function: { name: 'population' } }

const client = (gateway, key, more = {}) =>
  new OpenAI({ baseURL: `${gateway.url}/v1`, apiKey: key ?? gateway.key, ...more })
const ask = (gateway, messages, more = {}) =>
  client(gateway).chat.completions.create({ model: MODEL, messages, ...more })
const question = [{ role: 'user', content: QUESTION }]

await report({
  async chat(gateway) {
    saysSomething((await ask(gateway, question)).choices[0].message.content)
  },
  async stream(gateway) {
    let text = ''
    for await (const chunk of await ask(gateway, question, { stream: true })) text += chunk.choices[0]?.delta.content ?? ''
    saysSomething(text)
  },
  async system_prompt(gateway) {
    saysSomething((await ask(gateway, [{ role: 'system', content: SYSTEM }, ...question])).choices[0].message.content)
  },
  async three_turns(gateway) {
    saysSomething((await ask(gateway, TURNS, { max_completion_tokens: 40 })).choices[0].message.content)
  },
  async structured_output(gateway) {
    const { message } = (await client(gateway).chat.completions.parse({
      model: MODEL,
      messages: [{ role: 'user', content: ASK_FOR_JSON }],
      response_format: zodResponseFormat(Capital, 'capital'),
      max_completion_tokens: 80,
    })).choices[0]
    check(typeof message.parsed.capital === 'string', message)
  },
  async tool_call(gateway) {
    const asked = [{ role: 'user', content: ASK_FOR_TOOL }]
    if (hasNoTools(gateway)) {
      saysSomething((await ask(gateway, asked, { tools: [tool], max_completion_tokens: 40 })).choices[0].message.content)
      return
    }
    const more = { tools: [tool], tool_choice: forced, max_completion_tokens: 80 }
    const { message } = (await ask(gateway, asked, more)).choices[0]
    const [call] = message.tool_calls
    check(call.function.name === 'population' && typeof JSON.parse(call.function.arguments) === 'object', call)
    const result = { role: 'tool', tool_call_id: call.id, content: '1,200,000' }
    saysSomething((await ask(gateway, [...asked, message, result], { max_completion_tokens: 40 })).choices[0].message.content)
  },
  async abstention(gateway) {
    abstains((await ask(gateway, [{ role: 'user', content: UNSURE }])).choices[0].message.content)
  },
  async rate_limit(gateway) {
    const asked = client(gateway, gateway.limited.pop(), { maxRetries: 0 })
    const error = await raised(() => asked.chat.completions.create({ model: MODEL, messages: question }))
    check(error instanceof OpenAI.RateLimitError && Number(error.headers.get('retry-after')) >= 1, error)
  },
  async responses(gateway) {
    const { responses } = client(gateway)
    saysSomething((await responses.create({ model: MODEL, input: QUESTION })).output_text)
    let text = ''
    for await (const event of await responses.create({ model: MODEL, input: TURNS, stream: true, max_output_tokens: 40 }))
      if (event.type === 'response.output_text.delta') text += event.delta
    saysSomething(text)
  },
  async embeddings(gateway) {
    const { data } = await client(gateway).embeddings.create({ model: MODEL, input: ['Kingston', 'Jamaica'] })
    check(data.length === 2 && Math.abs(data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3, data.length)
  },
})
