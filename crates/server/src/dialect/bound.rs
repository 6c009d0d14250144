//! Upper bounds of billed input that a request's text alone does not give. All are in tokens.
//!
//! Text is one token per UTF-8 byte: bytes / 3 is not a bound (base64, emoji, CSV digits, hex, `\u` escapes
//! all take more tokens than that). Prose is counted decoded, since the model reads it decoded; JSON that the
//! model reads as JSON (tools, schemas, tool inputs) is counted compact but escaped as the client escaped it.
//! Keys and punctuation count, which covers what the provider adds around each message. Providers can change
//! the numbers below without notice: then a call overruns its reservation, is recorded in full, and the
//! constant is raised here.

/// Most tokens of an image in a chat request, unless one of the next two applies: 10,000 patches (`detail: original`)
/// at 2.46 tokens.
///
/// `auto` may mean `original`, and compatible servers with other rules (a Qwen image is up to 16,384) stay below.
pub const OPENAI_IMAGE: u64 = 25_000;

/// Most tokens of an image with `detail: low`: 2,833 where images are tiles. Models that cut patches ignore the detail:
/// 1,536 patches at 2.46 tokens.
pub const OPENAI_IMAGE_LOW: u64 = 4_000;

/// Most tokens of an image for gpt-4o-mini, which bills 2,833 + 5,667 tokens per tile, at most 8 tiles.
pub const OPENAI_IMAGE_4O_MINI: u64 = 50_000;

/// Most tokens of the definition behind a tool that OpenAI defines and the client runs (`computer`, `local_shell`).
pub const OPENAI_DEFINED_TOOL: u64 = 2_000;

/// Most tokens of an Anthropic image: width × height / 750 after scaling, about 4,800 at the largest size.
pub const ANTHROPIC_IMAGE: u64 = 8_192;

/// Most tokens of the system text that Anthropic adds with the first tool.
pub const ANTHROPIC_TOOL_PREAMBLE: u64 = 1_000;

/// Most tokens of the definition behind a tool that Anthropic defines and the client names (`bash_…`, `computer_…`).
pub const ANTHROPIC_DEFINED_TOOL: u64 = 2_000;

/// Most tokens of the definitions behind a named Anthropic toolset, which stands for some twenty tools.
pub const ANTHROPIC_DEFINED_TOOLSET: u64 = 40_000;

/// Most further model runs in Anthropic's loop over server tools, if a tool has no `max_uses`. After that Anthropic
/// answers `pause_turn`.
pub const SERVER_LOOP_TURNS: u64 = 10;

/// Most tokens that one web search puts into the context.
pub const WEB_SEARCH_RESULT: u64 = 16_384;

/// Most tokens that one web fetch puts into the context, if the tool has no `max_content_tokens`: a long PDF.
pub const WEB_FETCH_RESULT: u64 = 131_072;

/// Most tokens of a Gemini image: 258 for each tile of 768 × 768, after scaling to at most 3,072 × 3,072; newer models
/// take up to 2,240 for one.
pub const GEMINI_IMAGE: u64 = 8_192;

/// Most output tokens of one server-side compaction, which `max_tokens` does not cap.
pub const COMPACTION_OUTPUT: u64 = 20_000;

/// Returns the most input tokens that one image can be billed as by this chat model; `low`: the client asked for
/// `detail: low`.
pub fn openai_image(model: &str, low: bool) -> u64 {
    match (low, model.contains("4o-mini")) {
        (true, _) => OPENAI_IMAGE_LOW,
        (false, true) => OPENAI_IMAGE_4O_MINI,
        (false, false) => OPENAI_IMAGE,
    }
}

/// Returns the most input tokens that this many images, and so many of low detail, can be billed as.
pub fn openai_images(model: &str, images: u64, low: u64) -> u64 {
    let low = low.saturating_mul(openai_image(model, true));
    images.saturating_mul(openai_image(model, false)).saturating_add(low)
}

/// Returns the most input tokens billed over all turns of one request with server tools.
///
/// The model is run once and then once more after each of the `uses`, each time over `input` and all results so far.
/// `result`: tokens that one use adds at most. What the model itself wrote between uses is not counted again: it shares
/// the one output cap, so in practice it is small beside the results.
pub fn over_turns(input: u64, uses: u64, result: u64) -> u64 {
    let results_read = uses.saturating_mul(uses.saturating_add(1)) / 2;
    input.saturating_mul(uses.saturating_add(1)).saturating_add(result.saturating_mul(results_read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_tools_bill_the_input_again_after_each_use() {
        for (input, uses, result, bound) in
            [(1000, 0, 500, 1000), (1000, 1, 500, 2500), (1000, 3, 500, 7000), (u64::MAX, 2, 1, u64::MAX)]
        {
            assert_eq!(over_turns(input, uses, result), bound, "{input} {uses} {result}");
        }
    }

    #[test]
    fn images_are_bounded_by_model_and_detail() {
        for (model, low, bound) in [
            ("gpt-5.4", false, OPENAI_IMAGE),
            ("gpt-5.4", true, OPENAI_IMAGE_LOW),
            ("gpt-4o-mini-2024-07-18", false, OPENAI_IMAGE_4O_MINI),
            ("openai/gpt-4o-mini", true, OPENAI_IMAGE_LOW),
        ] {
            assert_eq!(openai_image(model, low), bound, "{model} {low}");
        }
    }
}
