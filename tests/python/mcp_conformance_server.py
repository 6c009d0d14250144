"""An MCP server of the official SDK with what the official conformance suite asks for by name.

mcp_conformance_server.py [PORT]: over streamable HTTP, else over standard input and output.
"""

import base64
import sys
import warnings

import mcp
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

warnings.simplefilter("ignore")
server = MCPServer("conformance")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = base64.b64encode(b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0").decode()


def image():
    return ImageContent(type="image", data=PIXEL, mime_type="image/png")


def resource(uri, text, kind="text/plain"):
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


def said(*contents):
    return [{"role": "user", "content": content} for content in contents]


@server.tool(structured_output=False)
def test_simple_text() -> str:
    "Simple text."
    return "This is a simple text response for testing."


@server.tool(structured_output=False)
def test_image_content() -> list:
    "Image content."
    return [image()]


@server.tool(structured_output=False)
def test_audio_content() -> list:
    "Audio content."
    return [AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


@server.tool(structured_output=False)
def test_embedded_resource() -> list:
    "Embedded resource."
    return [resource("test://embedded-resource", "This is an embedded resource content.")]


@server.tool(structured_output=False)
def test_multiple_content_types() -> list:
    "Multiple content types."
    text = TextContent(type="text", text="Multiple content types test:")
    return [text, image(), resource("test://mixed-content-resource", '{"test":"data"}', "application/json")]


@server.tool(structured_output=False)
def test_error_handling() -> str:
    "Error handling."
    raise RuntimeError("This tool intentionally returns an error for testing")


@server.tool(structured_output=False)
async def test_tool_with_logging(ctx: Context) -> str:
    "Tool with logging."
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(words)
    return "done"


@server.tool(structured_output=False)
async def test_tool_with_progress(ctx: Context) -> str:
    "Tool with progress."
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100)
    return "done"


@server.tool(structured_output=False)
async def test_sampling(prompt: str, ctx: Context) -> str:
    "Sampling."
    asked = [SamplingMessage(role="user", content=TextContent(type="text", text=prompt))]
    # With the call whose answer it belongs to: the stream of the session may not be open yet.
    answer = await ctx.session.create_message(messages=asked, max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {answer.content}"


class Word(BaseModel):
    response: str = Field(description="User's response")


@server.tool(structured_output=False)
async def test_elicitation(message: str, ctx: Context) -> str:
    "Elicitation."
    answer = await ctx.elicit(message, Word)
    return f"User response: {answer.action}"


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: str = Field("active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = True


@server.tool(structured_output=False)
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    "Elicitation sep1034 defaults."
    answer = await ctx.elicit("With defaults", Defaults)
    return f"Elicitation completed: {answer.action}"


def titled(*names):
    return [{"const": name, "title": name.title()} for name in names]


class Choices(BaseModel):
    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": titled("value1", "value2", "value3")})
    legacyEnum: str = Field(json_schema_extra={"enum": ["opt1", "opt2"], "enumNames": ["One", "Two"]})
    untitledMulti: list[str] = Field(json_schema_extra={"items": {"type": "string", "enum": ["a", "b", "c"]}})
    titledMulti: list[str] = Field(json_schema_extra={"items": {"anyOf": titled("x", "y", "z")}})


@server.tool(structured_output=False)
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    "Elicitation sep1330 enums."
    answer = await ctx.elicit("With choices", Choices)
    return f"Elicitation completed: {answer.action}"


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    return f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'


@server.prompt()
def test_simple_prompt() -> list:
    "Simple prompt."
    return said(TextContent(type="text", text="This is a simple prompt for testing."))


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> list:
    "Prompt with arguments."
    return said(TextContent(type="text", text=f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list:
    "Prompt with embedded resource."
    return said(resource(resourceUri, "Embedded resource content for testing."))


@server.prompt()
def test_prompt_with_image() -> list:
    "Prompt with image."
    return said(image(), TextContent(type="text", text="Please analyze the image above."))


@server.completion()
async def complete(ref, argument, context):
    return Completion(values=["paris", "park", "party"], total=3, has_more=False)


def asks_person(message, **kinds):
    "A question to the person at the client, whose answer has these members."
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}, "required": [*kinds]}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def asks_model(text):
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 50}}


NAME = asks_person("What is your name?", name="string")
SURE = asks_person("Please confirm", ok="boolean")
ROOTS = {"method": "roots/list", "params": {}}
#: What each tool of 2026-07-28 asks before it answers: its rounds, by the state that the client gives back.
ROUNDS = {
    "test_input_required_result_elicitation": [{"user_name": NAME}],
    "test_streaming_elicitation": [{"user_name": NAME}],
    "test_input_required_result_sampling": [{"capital_question": asks_model("What is the capital of France?")}],
    "test_input_required_result_list_roots": [{"client_roots": ROOTS}],
    "test_input_required_result_request_state": [{"confirm": SURE}],
    "test_input_required_result_tampered_state": [{"confirm": SURE}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": NAME, "greeting": asks_model("Generate a greeting"), "client_roots": ROOTS}
    ],
    "test_input_required_result_multi_round": [
        {"step1": asks_person("Step 1: What is your name?", name="string")},
        {"step2": asks_person("Step 2: What is your favorite color?", color="string")},
    ],
    "test_input_required_result_capabilities": [{"greeting": asks_model("Generate a greeting")}],
}


def asked(rounds, ctx):
    "What is to be asked next; None once all is answered."
    at = int(ctx.request_state or 0)
    at += set(rounds[at]) <= set(ctx.input_responses or ())
    if at == len(rounds):
        return None
    return InputRequiredResult.model_validate({"inputRequests": rounds[at], "requestState": str(at)})


def add_asking_tool(name, rounds):
    async def tool(ctx: Context) -> str | InputRequiredResult:
        "Asks before it answers."
        words = [answer.model_dump_json() for answer in (ctx.input_responses or {}).values()]
        return asked(rounds, ctx) or f"state-ok {' '.join(words)}"

    server.add_tool(tool, name=name, structured_output=False)


for name, rounds in ROUNDS.items():
    add_asking_tool(name, rounds)


@server.prompt()
def test_input_required_result_prompt(ctx: Context) -> list | InputRequiredResult:
    "Asks before it answers."
    question = {"user_context": asks_person("What context should the prompt use?", context="string")}
    return asked([question], ctx) or said(TextContent(type="text", text="The context is known."))


@server.tool(structured_output=False)
def test_missing_capability(ctx: Context) -> str:
    "Wants a client that samples."
    if ctx.client_capabilities is None or ctx.client_capabilities.sampling is None:
        raise mcp.MCPError(-32021, "Missing required client capability", {"requiredCapabilities": {"sampling": {}}})
    return "done"


@server.tool(structured_output=False)
async def test_logging_tool(ctx: Context) -> str:
    "Logs."
    await ctx.info("logged")
    return "done"


@server.tool(structured_output=False)
async def test_trigger_tool_change(ctx: Context) -> str:
    "Tells of other tools."
    await ctx.notify_tools_changed()
    return "done"


@server.tool(structured_output=False)
async def test_trigger_prompt_change(ctx: Context) -> str:
    "Tells of other prompts."
    await ctx.notify_prompts_changed()
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    server.run()
