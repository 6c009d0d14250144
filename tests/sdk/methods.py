"""Every method of the official Python clients that asks a model: what each gives, a JSON line each, and the bodies that
its answers came in. Base URLs and keys are those of the environment."""

import asyncio
import itertools
import json
import os
import signal
import sys

import anthropic
import httpx
import httpx2
import openai
from google import genai
from google.genai import types
from pydantic import BaseModel

BODIES = []
KEPT = []
SAID = itertools.count(1)
#: In each life that many more methods, and then kill -9.
LIVES = int(os.environ.get("DIE_EVERY", 0)) * int(os.environ.get("OUTLAST_ATTEMPT", 0))
MODEL, CLAUDE, GEMINI = "gpt-4o-mini", "claude-haiku-4-5", "gemini-2.5-flash"
SHAPE = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = 'work\nmock: tool look {"at": "a.txt"}\nmock: reply all is well'


class Count(BaseModel):
    n: int


def witnessed(http):
    """Clients of that package that keep each answer's bytes, as they come."""

    class Stream(http.SyncByteStream, http.AsyncByteStream):
        def __init__(self, stream):
            self.stream, self.at = stream, len(BODIES)
            BODIES.append(b"")

        def __iter__(self):
            for chunk in self.stream:
                BODIES[self.at] += chunk
                yield chunk

        async def __aiter__(self):
            async for chunk in self.stream:
                BODIES[self.at] += chunk
                yield chunk

        def close(self):
            self.stream.close()

        async def aclose(self):
            await self.stream.aclose()

    class Transport(http.HTTPTransport):
        def handle_request(self, request):
            answer = super().handle_request(request)
            answer.stream = Stream(answer.stream)
            return answer

    class AsyncTransport(http.AsyncHTTPTransport):
        async def handle_async_request(self, request):
            answer = await super().handle_async_request(request)
            answer.stream = Stream(answer.stream)
            return answer

    return http.Client(transport=Transport()), http.AsyncClient(transport=AsyncTransport())


def plain(value):
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude={"sdk_http_response"}, warnings=False)
    return [plain(v) for v in value] if isinstance(value, list) else value


def say(method, result):
    print(json.dumps({"method": method, "result": plain(result), "bodies": [b.decode() for b in BODIES]}))
    BODIES.clear()
    if next(SAID) == LIVES:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def user(text):
    return [{"role": "user", "content": text}]


def count(what):
    return f'count {what}\nmock: reply {{"n": 7}}'


def of_openai(client):
    tools = [{"type": "function", "function": {"name": "look", "parameters": SHAPE}}]
    common = dict(model=MODEL, max_tokens=60)
    chat = client.chat.completions
    say("chat.create", chat.create(messages=user("whole"), **common))
    say("chat.create, tools", chat.create(messages=user(TOOL), tools=tools, **common))
    say("chat.create, stream", list(chat.create(messages=user("streamed"), stream=True, **common)))
    counted = {"stream": True, "stream_options": {"include_usage": True}}
    say("chat.create, stream with usage", list(chat.create(messages=user("streamed, counted"), **counted, **common)))
    say("chat.parse", chat.parse(messages=user(count("chat")), response_format=Count, **common))
    with chat.stream(messages=user("helped"), **common) as stream:
        say("chat.stream", stream.get_final_completion())
    raw = chat.with_raw_response.create(messages=user("raw"), **common)
    say("chat.with_raw_response", raw.parse())
    with chat.with_streaming_response.create(messages=user("streaming response"), **common) as answer:
        say("chat.with_streaming_response", "".join(answer.iter_lines()))

    common = dict(model=MODEL, max_output_tokens=60)
    responses = client.responses
    first = responses.create(input="remember me", **common)
    say("responses.create", first)
    say("responses.create, goes on", responses.create(input="and now", previous_response_id=first.id, **common))
    flat = [{"type": "function", "name": "look", "parameters": SHAPE}]
    say("responses.create, tools", responses.create(input=TOOL, tools=flat, **common))
    say("responses.create, stream", list(responses.create(input="streamed", stream=True, **common)))
    say("responses.parse", responses.parse(input=count("responses"), text_format=Count, **common))
    with responses.stream(input="helped", **common) as stream:
        say("responses.stream", stream.get_final_response())
    say("responses.retrieve", responses.retrieve(first.id))
    say("responses.input_items.list", responses.input_items.list(first.id).data)
    KEPT.append(first.id)
    say("embeddings.create", client.embeddings.create(model="text-embedding-3-small", input=["one", "two"]))
    say("models.list", client.models.list().data)


async def of_async_openai(client):
    answer = await client.chat.completions.create(model=MODEL, max_tokens=60, messages=user("async"))
    say("async chat.create", answer)
    stream = await client.responses.create(model=MODEL, max_output_tokens=60, input="async", stream=True)
    say("async responses.create, stream", [part async for part in stream])
    say("async embeddings.create", await client.embeddings.create(model="text-embedding-3-small", input="three"))


def of_anthropic(client):
    tools = [{"name": "look", "input_schema": SHAPE}]
    common = dict(model=CLAUDE, max_tokens=60)
    messages = client.messages
    say("messages.create", messages.create(messages=user("whole"), **common))
    say("messages.create, tools", messages.create(messages=user(TOOL), tools=tools, **common))
    say("messages.create, stream", list(messages.create(messages=user("streamed"), stream=True, **common)))
    with messages.stream(messages=user("helped"), **common) as stream:
        say("messages.stream", stream.get_final_message())
    say("messages.count_tokens", messages.count_tokens(model=CLAUDE, messages=user("counted")))
    beta = client.beta.messages
    say("beta.messages.create", beta.create(messages=user("beta"), betas=["context-1m-2025-08-07"], **common))
    with beta.stream(messages=user("beta helped"), **common) as stream:
        say("beta.messages.stream", stream.get_final_message())
    say("anthropic.models.list", client.models.list().data)


async def of_async_anthropic(client):
    say("async messages.create", await client.messages.create(model=CLAUDE, max_tokens=60, messages=user("async")))
    async with client.messages.stream(model=CLAUDE, max_tokens=60, messages=user("async helped")) as stream:
        say("async messages.stream", await stream.get_final_message())


def of_gemini(client):
    def config(**more):
        return types.GenerateContentConfig(max_output_tokens=60, **more)

    models = client.models
    say("generate_content", models.generate_content(model=GEMINI, contents="whole", config=config()))
    say("generate_content_stream", list(models.generate_content_stream(model=GEMINI, contents="streamed", config=config())))
    look = types.Tool(function_declarations=[types.FunctionDeclaration(name="look", parameters_json_schema=SHAPE)])
    say("generate_content, tools", models.generate_content(model=GEMINI, contents=TOOL, config=config(tools=[look])))
    shaped = config(response_mime_type="application/json", response_schema=Count)
    say("generate_content, schema", models.generate_content(model=GEMINI, contents=count("gemini"), config=shaped))
    chat = client.chats.create(model=GEMINI, config=config())
    say("chats.send_message", [chat.send_message("hello"), chat.send_message("and again")])
    say("chats.send_message_stream", list(chat.send_message_stream("and streamed")))
    say("count_tokens", models.count_tokens(model=GEMINI, contents="counted"))


async def of_async_gemini(client):
    answer = await client.aio.models.generate_content(model=GEMINI, contents="async")
    say("async generate_content", answer)
    stream = await client.aio.models.generate_content_stream(model=GEMINI, contents="async, streamed")
    say("async generate_content_stream", [part async for part in stream])


async def aio():
    await of_async_openai(openai.AsyncOpenAI(http_client=AIO))
    await of_async_anthropic(anthropic.AsyncAnthropic(http_client=AIO2))
    await of_async_gemini(genai.Client(http_options=types.HttpOptions(httpx_async_client=AIO)))


# One SDK has gone on to the next package of that name.
WEB, AIO = witnessed(httpx)
WEB2, AIO2 = witnessed(httpx2)
of_openai(openai.OpenAI(http_client=WEB))
of_anthropic(anthropic.Anthropic(http_client=WEB2))
of_gemini(genai.Client(http_options=types.HttpOptions(httpx_client=WEB)))
asyncio.run(aio())
openai.OpenAI(http_client=WEB).responses.delete(KEPT[0])
say("responses.delete", None)
