//! An answer of the fake provider and its usage, before a dialect writes it.

use outlast_core::words::Usage;

use super::{
    cache::Cached,
    options::FixedUsage,
    options::Options,
    request::{Dialect, Request},
    route::Manner,
    script::{Script, ToolCall},
};

/// Longest word, in bytes, that is one token; a longer one is several tokens.
const TOKEN_BYTES: usize = 16;

/// One answer of the fake provider. The same request, repeated equally often, gets the same answer.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub model: &'a str,
    /// Id of the answer, as `DIGEST_OCCURRENCE`, without the prefix by which a dialect marks the kind of id.
    pub id: String,
    pub thinking: Option<Tokens>,
    pub content: Content,
    pub stop: Stop,
    /// Number of choices; `usage` bills all of them.
    pub choices: u32,
    pub usage: Usage,
    /// Service tier that the request asks for; `auto` if it names none.
    pub service_tier: &'a str,
    /// Whether a streamed answer reports its usage in a last chunk, as OpenAI's does on request.
    pub includes_usage: bool,
    pub manner: Manner,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    Text(Tokens),
    Tool { name: String, args: Tokens },
}

/// Reason why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    End,
    Tool,
    /// The answer reached the request's cap on output tokens.
    Length,
}

impl<'a> Answer<'a> {
    /// Builds the answer to `request`, which arrives for the `occurrence`th time. `next_tool` is the tool call that the
    /// answer makes; `None`: the answer is text.
    pub fn new(
        request: &'a Request<'_>,
        script: &Script,
        next_tool: Option<ToolCall>,
        occurrence: u64,
        cached: Cached,
        options: &Options,
    ) -> Self {
        let digest = request.digest.to_string();
        let id = format!("{}_{occurrence}", &digest[..24]);
        let (mut content, mut stop) = match next_tool {
            Some(ToolCall { name, args }) => (Content::Tool { name, args: Tokens::of(args) }, Stop::Tool),
            None => (Content::Text(text(script, &digest, occurrence)), Stop::End),
        };
        let mut thinking = request
            .thinks()
            .then(|| Tokens::of(format!("thinking about {} for the time {occurrence}", &digest[..12])));

        // Thinking comes first, so a cap cuts the content first.
        let thought = thinking.as_mut().map_or(0, |thinking| thinking.keep(request.cap()));
        let spoken = content.tokens_mut().keep(request.cap() - thought);
        if content.tokens_mut().is_cut || thinking.as_ref().is_some_and(|thinking| thinking.is_cut) {
            stop = Stop::Length;
        }

        let choices = request.choices();
        let usage = usage(request, script, options, cached, thought, spoken);
        let thinking = thinking.filter(|_| request.dialect == Dialect::Anthropic);
        Self {
            model: &request.wire.model,
            id,
            thinking,
            content,
            stop,
            choices,
            usage,
            service_tier: request.wire.service_tier.as_deref().unwrap_or("auto"),
            includes_usage: request.includes_usage(),
            manner: Manner::Own,
        }
    }

    /// Returns the same answer in the manner of the server that `manner` imitates.
    pub fn in_manner(self, manner: Manner) -> Self {
        let includes_usage = self.includes_usage && manner != Manner::Ollama;
        Self { includes_usage, manner, ..self }
    }
}

impl Content {
    fn tokens_mut(&mut self) -> &mut Tokens {
        match self {
            Self::Text(tokens) | Self::Tool { args: tokens, .. } => tokens,
        }
    }
}

fn text(script: &Script, digest: &str, occurrence: u64) -> Tokens {
    let text = match &script.reply {
        Some(reply) => reply.replace("{n}", &occurrence.to_string()),
        None => format!("answer {} #{occurrence}", &digest[..12]),
    };
    match script.tokens {
        Some(count) => Tokens::exactly(text, count),
        None => Tokens::of(text),
    }
}

/// Returns the usage that is billed: that of the request's `mock: usage` line to the letter, else the
/// provider's fixed usage within the cap, else the tokens read and written.
fn usage(
    request: &Request<'_>,
    script: &Script,
    options: &Options,
    cached: Cached,
    thought: u64,
    spoken: u64,
) -> Usage {
    let choices = u64::from(request.choices());
    let (input, output) = match (script.usage, options.usage) {
        (Some(FixedUsage { input, output }), _) => (input, output),
        (None, Some(FixedUsage { input, output })) => {
            (input, output.min(request.cap()).saturating_mul(choices))
        }
        (None, None) => (input_tokens(request.body), (thought + spoken).saturating_mul(choices)),
    };
    // Vectors are not billed.
    let output = if request.dialect == Dialect::Embeddings { 0 } else { output };
    let reasoning = thought.saturating_mul(choices).min(output);
    // OpenAI caches unasked: that would make a fixed usage vary.
    let fixed = script.usage.is_some() || options.usage.is_some();
    let cached = if fixed && request.dialect.is_openai() { Cached::default() } else { cached };
    // Each prefix has its bytes' share of the input, rounded down, so that the columns never exceed the whole.
    let share = |bytes: u64| {
        let whole = request.body.len().max(1) as u128;
        u64::try_from(u128::from(input) * u128::from(bytes).min(whole) / whole).unwrap_or(input)
    };
    let read = share(cached.read);
    let (write_5m, write_1h) = match request.dialect {
        Dialect::Anthropic => (share(cached.written_5m), share(cached.written_1h)),
        // OpenAI writes its cache for nothing, and counts what it reads in steps of 128.
        Dialect::OpenAi | Dialect::Responses | Dialect::Embeddings | Dialect::Gemini => (0, 0),
    };
    let cache_read = if request.dialect.is_openai() { read / 128 * 128 } else { read };
    let cache_write_5m = write_5m.min(input - cache_read);
    let cache_write_1h = write_1h.min(input - cache_read - cache_write_5m);
    Usage {
        input: input - cache_read - cache_write_5m - cache_write_1h,
        cache_read,
        cache_write_5m,
        cache_write_1h,
        output,
        reasoning,
        web_searches: script.searches,
    }
}

/// Returns the input tokens that are billed for a body: a quarter of its bytes, and so less than any bound that counts
/// a byte as a token.
pub(super) fn input_tokens(body: &[u8]) -> u64 {
    (body.len() as u64).div_ceil(4)
}

/// Text cut into tokens: each word with the space after it, long words in parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    text: String,
    ends: Vec<usize>,
    is_cut: bool,
}

impl Tokens {
    pub fn of(text: String) -> Self {
        let mut ends = Vec::new();
        let mut start = 0;
        for (at, c) in text.char_indices() {
            let end = at + c.len_utf8();
            if c == ' ' || end - start >= TOKEN_BYTES {
                ends.push(end);
                start = end;
            }
        }
        if start < text.len() {
            ends.push(text.len());
        }
        Self { text, ends, is_cut: false }
    }

    /// Makes `text` exactly `count` tokens (at least 1): padded with words, or its rest joined into the last
    /// token.
    fn exactly(text: String, count: usize) -> Self {
        let mut tokens = Self::of(text);
        if tokens.ends.len() > count {
            tokens.ends.truncate(count - 1);
            tokens.ends.push(tokens.text.len());
        }
        for n in tokens.ends.len()..count {
            tokens.text.push_str(&format!(" w{n}"));
            tokens.ends.push(tokens.text.len());
        }
        tokens
    }

    /// Keeps the first `cap` tokens; returns how many there are.
    fn keep(&mut self, cap: u64) -> u64 {
        let cap = usize::try_from(cap).unwrap_or(usize::MAX);
        if self.ends.len() > cap {
            self.ends.truncate(cap);
            self.text.truncate(self.ends.last().copied().unwrap_or(0));
            self.is_cut = true;
        }
        self.ends.len() as u64
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.ends.iter().scan(0, |start, &end| Some(&self.text[std::mem::replace(start, end)..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(tokens: &Tokens) -> Vec<&str> {
        tokens.pieces().collect()
    }

    #[test]
    fn tokens_are_words_and_parts_of_long_words() {
        let check = |text: &str, expected: &[&str]| assert_eq!(pieces(&Tokens::of(text.into())), expected);
        check("", &[]);
        check("a bc  d", &["a ", "bc ", " ", "d"]);
        check("0123456789abcdefgh", &["0123456789abcdef", "gh"]);
        check("ééééééééé", &["éééééééé", "é"]);
    }

    #[test]
    fn a_text_is_stretched_or_gathered_to_its_number_of_tokens() {
        let check = |count, expected: &[&str]| {
            assert_eq!(pieces(&Tokens::exactly("one two three".into(), count)), expected);
        };
        check(1, &["one two three"]);
        check(2, &["one ", "two three"]);
        check(5, &["one ", "two ", "three", " w3", " w4"]);
    }

    #[test]
    fn a_cap_cuts_text_and_tokens_alike() {
        let mut tokens = Tokens::of("one two three".into());
        assert_eq!((tokens.keep(9), tokens.is_cut), (3, false));
        assert_eq!((tokens.keep(2), tokens.is_cut), (2, true));
        assert_eq!((tokens.text(), pieces(&tokens)), ("one two ", vec!["one ", "two "]));
        assert_eq!((tokens.keep(0), tokens.text()), (0, ""));
    }
}
