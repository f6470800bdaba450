// The AI SDK with its OpenAI provider: the Responses API, its default, and chat completions.
import { createOpenAI } from '@ai-sdk/openai'
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import {
  ASK_FOR_JSON, ASK_FOR_TOOL, MODEL, QUESTION, SYSTEM, TURNS, UNSURE, abstains, check, hasNoTools, raised, report, saysSomething,
} from './scenarios.mjs'

const Capital = z.object({ capital: z.string().max(20), country: z.string().max(20) })
const provider = (gateway, key) => createOpenAI({ baseURL: `${gateway.url}/v1`, apiKey: key ?? gateway.key })
const models = (gateway, key) => [provider(gateway, key)(MODEL), provider(gateway, key).chat(MODEL)]
const population = (called) =>
  tool({
    description: 'Look up the population of a city.',
    strict: true,
    inputSchema: z.object({ city: z.string().max(20) }),
    execute: async ({ city }) => {
      called.push(city)
      return '1,200,000'
    },
  })

await report({
  async chat(gateway) {
    for (const model of models(gateway)) saysSomething((await generateText({ model, prompt: QUESTION })).text)
  },
  async stream(gateway) {
    for (const model of models(gateway)) {
      let text = ''
      for await (const piece of streamText({ model, prompt: QUESTION, onError: ({ error }) => { throw error } }).textStream) text += piece
      saysSomething(text)
    }
  },
  async system_prompt(gateway) {
    for (const model of models(gateway))
      saysSomething((await generateText({ model, system: SYSTEM, prompt: QUESTION })).text)
  },
  async three_turns(gateway) {
    for (const model of models(gateway)) {
      saysSomething((await generateText({ model, messages: TURNS, maxOutputTokens: 40 })).text)
      // As the documentation does it: the messages of each reply are sent again.
      const messages = [TURNS[0]]
      for (const next of [TURNS[2], TURNS[4]]) {
        const reply = await generateText({ model, messages, maxOutputTokens: 40 })
        messages.push(...reply.response.messages, next)
      }
      saysSomething((await generateText({ model, messages, maxOutputTokens: 40 })).text)
    }
  },
  async structured_output(gateway) {
    for (const model of models(gateway)) {
      const { output } = await generateText({
        model, prompt: ASK_FOR_JSON, output: Output.object({ schema: Capital }), maxOutputTokens: 80,
      })
      check(typeof output.capital === 'string', output)
    }
  },
  async tool_call(gateway) {
    for (const model of models(gateway)) {
      const called = []
      const asked = { model, prompt: ASK_FOR_TOOL, tools: { population: population(called) }, maxOutputTokens: 80 }
      if (hasNoTools(gateway)) {
        saysSomething((await generateText(asked)).text)
        continue
      }
      const forced = await generateText({ ...asked, toolChoice: { type: 'tool', toolName: 'population' } })
      check(forced.toolCalls.length === 1, forced.toolCalls)
      // The whole loop: the tool's result goes back to the model. Whether it calls the tool is its own choice.
      const reply = await generateText({ ...asked, stopWhen: stepCountIs(2) })
      if (gateway.calls_tools === 'always') check(called.length === 2, called)
      saysSomething(reply.text)
      let parts = ''
      const streamed = streamText({ ...asked, toolChoice: { type: 'tool', toolName: 'population' } })
      for await (const part of streamed.fullStream) if (part.type === 'tool-call') parts += part.toolName
      check(parts === 'population', parts)
    }
  },
  async abstention(gateway) {
    for (const model of models(gateway))
      abstains((await generateText({ model, prompt: UNSURE })).text)
  },
  async rate_limit(gateway) {
    const key = gateway.limited.pop()
    const error = await raised(() => generateText({ model: provider(gateway, key)(MODEL), prompt: QUESTION, maxRetries: 0 }))
    check(APICallError.isInstance(error) && error.statusCode === 429 && error.isRetryable, error)
    check(Number(error.responseHeaders['retry-after']) >= 1, error.responseHeaders)
  },
  async embeddings(gateway) {
    const model = provider(gateway).embedding(MODEL)
    check((await embedMany({ model, values: ['Kingston', 'Jamaica'] })).embeddings.length === 2, 'embeddings')
  },
})
