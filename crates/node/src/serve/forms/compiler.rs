//! Turns grammars into matchers: beside the engine, within limits, each only once.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId,
};
use llguidance::{Matcher, ParserFactory};
use motley_gateway::Refusal;
use motley_ggml::{Token, Vocabulary};

use super::grammar::{Grammar, Scope};
use super::matcher::{FormMatcher, Opening, Trigger, problem};
use crate::background::{Background, BackgroundError, Haste};
use crate::driver::Constrainer;

/// What compiling grammars may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) struct FormLimits {
    /// How long one may take, waiting for a worker included.
    pub(in crate::serve) compile: Duration,
    /// Bytes that one may take, in an answer that it forces too.
    pub(in crate::serve) memory_bytes: usize,
    /// Grammars that are kept.
    pub(in crate::serve) kept: usize,
    /// Bytes of all that are kept.
    pub(in crate::serve) kept_bytes: usize,
}

/// Grammars that are compiled at the same time. One that takes too long keeps its worker until the
/// limits below end it.
const WORKERS: usize = 2;

/// Bytes of a token that a form may use; longer ones are white space and rules of a page's width.
const TOKEN_BYTES_MAX: usize = 512;

/// Tokens of a made-up answer by which a grammar shows that it stays within the limits.
const REHEARSED_TOKENS: usize = 32;

/// Memory of one state of the lexer at most, and of its share of all else.
const STATE_BYTES: usize = 2_684;

/// What llguidance may spend. A row has a few items for each of the gateway's 1,024 schemas; a mask
/// takes at most some 10 ms.
fn parser_limits(memory_bytes: usize) -> ParserLimits {
    ParserLimits {
        max_items_in_row: 10_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 100_000,
        step_max_items: 100_000,
        max_lexer_states: memory_bytes / STATE_BYTES,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Makes matchers for one model's vocabulary.
pub(in crate::serve) struct Compiler {
    shared: Arc<Shared>,
    workers: Background,
    /// For the vocabulary's tree.
    trees: Background,
    time_max: Duration,
}

/// What workers use.
struct Shared {
    vocabulary: Arc<Vocabulary>,
    logits: usize,
    memory_bytes: usize,
    /// Made for the first form, because a large vocabulary takes a while.
    factory: OnceLock<Result<ParserFactory, String>>,
    kept: Mutex<Kept>,
}

/// Compiled grammars, the latest used last.
pub(super) struct Kept {
    entries: Vec<KeptGrammar>,
    bytes: usize,
    limits: FormLimits,
}

pub(super) struct KeptGrammar {
    pub(super) text: String,
    pub(super) matcher: Arc<Matcher>,
    pub(super) bytes: usize,
}

impl Compiler {
    /// A compiler for a vocabulary and a model that has so many logits.
    pub(in crate::serve) fn new(
        vocabulary: Arc<Vocabulary>,
        logits: usize,
        limits: FormLimits,
    ) -> Self {
        let kept = Mutex::new(Kept::new(limits));
        let memory_bytes = limits.memory_bytes;
        let shared = Shared { vocabulary, logits, memory_bytes, factory: OnceLock::new(), kept };
        Self {
            shared: Arc::new(shared),
            workers: Background::new("grammar", Haste::Request, WORKERS),
            trees: Background::new("tree", Haste::Once, 1),
            time_max: limits.compile,
        }
    }

    /// The matcher of an answer that `grammar` forces.
    ///
    /// # Errors
    /// When the grammar cannot be forced or takes too long to compile.
    pub(in crate::serve) async fn matcher(
        &self,
        grammar: Grammar,
    ) -> Result<Box<dyn Constrainer>, Refusal> {
        let kept = self.shared.kept().find(grammar.text());
        let trigger = self.shared.trigger(grammar.scope());
        let matcher = match kept {
            Some(matcher) => matcher,
            None => self.compile(grammar).await?,
        };
        Ok(Box::new(FormMatcher::new(matcher, self.shared.logits, trigger)))
    }

    async fn compile(&self, grammar: Grammar) -> Result<Arc<Matcher>, Refusal> {
        if self.shared.factory.get().is_none() {
            // Not within the limit: a large vocabulary is not the client's fault.
            self.on(&self.trees, |shared| shared.factory().map(|_| ())).await??;
        }
        let compiled = self.on(&self.workers, move |shared| shared.compile(&grammar));
        match tokio::time::timeout(self.time_max, compiled).await {
            Ok(compiled) => compiled?,
            Err(_) => Err(super::schema::refuse("", "takes too long to compile")),
        }
    }

    /// Works on a thread of its own. Dropping this leaves the thread to itself.
    async fn on<T: Send + 'static>(
        &self,
        background: &Background,
        work: impl FnOnce(&Shared) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(&self.shared);
        background.run(move || work(&shared)).await.map_err(BackgroundError::into_refusal)
    }
}

impl Shared {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where forms of a grammar begin. Openings may be control tokens of the vocabulary.
    fn trigger(&self, scope: &Scope) -> Trigger {
        let token = |text: &str| match self.vocabulary.tokenize(text, false, true).as_deref() {
            Ok([token]) => Some(*token),
            _ => None,
        };
        match scope {
            Scope::Whole => Trigger::Start,
            Scope::Behind(text) => Trigger::Opening(Opening::new(text, token(text))),
            Scope::BeginningAndBehind(text) => {
                Trigger::Opening(Opening { is_given: true, ..Opening::new(text, token(text)) })
            }
            Scope::Beginning { names, again } => {
                let again = again.as_deref().and_then(token);
                Trigger::Names { names: names.as_slice().into(), again }
            }
        }
    }

    fn factory(&self) -> Result<&ParserFactory, Refusal> {
        let made = || factory(&token_bytes(&self.vocabulary, self.logits)?, self.memory_bytes);
        self.factory.get_or_init(made).as_ref().map_err(|problem| Refusal::Unsupported {
            param: "response_format".to_owned(),
            feature: format!("forced form of an answer: {problem}"),
        })
    }

    fn compile(&self, grammar: &Grammar) -> Result<Arc<Matcher>, Refusal> {
        // Another worker may have been first.
        if let Some(matcher) = self.kept().find(grammar.text()) {
            return Ok(matcher);
        }
        let factory = self.factory()?;
        // A fault of the compiler ends this request and no other.
        let work = AssertUnwindSafe(|| compile(factory, grammar.text()));
        let (matcher, bytes) = llguidance::panic_utils::catch_unwind(work)
            .map_err(|error| grammar.refusal(&problem(&error)))?;
        let matcher = Arc::new(matcher);
        let gone = self.kept().keep(KeptGrammar {
            text: grammar.text().to_owned(),
            matcher: Arc::clone(&matcher),
            bytes: bytes + grammar.text().len(),
        });
        // Freeing takes a while, for which nobody is to wait on the lock.
        drop(gone);
        Ok(matcher)
    }
}

/// A matcher that has computed its first mask, so that the engine's thread need not, and the bytes
/// it holds.
pub(super) fn compile(factory: &ParserFactory, grammar: &str) -> anyhow::Result<(Matcher, usize)> {
    let mut parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()))?;
    parser.start_without_prompt();
    parser.compute_mask()?;
    let bytes = parser.parser.lexer_stats().num_bytes;
    let matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(error) => Err(anyhow::Error::msg(error)),
        None => rehearse(&matcher).map(|()| (matcher, bytes)),
    }
}

/// Writes the beginning of a short answer, so that a grammar which is too large for a step fails
/// here, where the client can still be told, and not amid an answer.
fn rehearse(matcher: &Matcher) -> anyhow::Result<()> {
    let mut own = matcher.deep_clone();
    let vocabulary = own.tok_env()?;
    let trie = vocabulary.tok_trie();
    // What ends texts, lists and objects soonest.
    let short: Vec<TokenId> = b"\"}]:,".iter().filter_map(|byte| trie.token_id(&[*byte])).collect();
    for _ in 0..REHEARSED_TOKENS {
        if own.is_stopped() {
            break;
        }
        let allowed = own.compute_mask()?;
        let lowest = || allowed.iter().next();
        let token = short.iter().copied().find(|token| allowed.is_allowed(*token)).or_else(lowest);
        let Some(token) = token.filter(|token| !trie.eos_tokens().contains(token)) else { break };
        own.consume_token(token)?;
    }
    Ok(())
}

/// The tokens of a vocabulary as llguidance sees them.
#[derive(Debug)]
pub(super) struct TokenBytes {
    /// Bytes by token; nothing for tokens that no form may use.
    pub(super) bytes: Vec<Vec<u8>>,
    /// Tokens that end an answer.
    pub(super) ends: Vec<TokenId>,
}

/// Control tokens have no bytes here, so that no form can be written with them.
pub(super) fn token_bytes(vocabulary: &Vocabulary, logits: usize) -> Result<TokenBytes, String> {
    let mut bytes = vec![Vec::new(); logits];
    for (token, bytes) in bytes.iter_mut().enumerate().take(vocabulary.size()) {
        let token = Token::try_from(token).map_err(|error| error.to_string())?;
        vocabulary.append_bytes(token, false, bytes).map_err(|error| error.to_string())?;
        // The first byte marks special tokens for llguidance; in UTF-8 it does not occur.
        if bytes.len() > TOKEN_BYTES_MAX || bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
            bytes.clear();
        }
    }
    let ends = vocabulary.end_tokens().into_iter().map(Token::cast_unsigned).collect();
    Ok(TokenBytes { bytes, ends })
}

/// What compiles grammars for a vocabulary.
pub(super) fn factory(tokens: &TokenBytes, memory_bytes: usize) -> Result<ParserFactory, String> {
    let Some(end) = tokens.ends.first() else {
        return Err("the model has no token that ends an answer".to_owned());
    };
    // Ids have 24 bits in llguidance's tree, of which the last is taken.
    let size = u32::try_from(tokens.bytes.len()).ok().filter(|size| *size < 0xff_ffff);
    let size = size.ok_or("the vocabulary is too large")?;
    let trie = TokTrie::from(&TokRxInfo::new(size, *end), &tokens.bytes);
    let trie = trie.with_eos_tokens(&tokens.ends);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
        .map_err(|error| problem(&error))?;
    factory.quiet();
    *factory.limits_mut() = parser_limits(memory_bytes);
    Ok(factory)
}

impl Kept {
    pub(super) fn new(limits: FormLimits) -> Self {
        Self { entries: Vec::new(), bytes: 0, limits }
    }

    pub(super) fn find(&mut self, text: &str) -> Option<Arc<Matcher>> {
        let at = self.entries.iter().position(|entry| entry.text == text)?;
        let entry = self.entries.remove(at);
        let matcher = Arc::clone(&entry.matcher);
        self.entries.push(entry);
        Some(matcher)
    }

    /// Keeps a grammar, and gives back those that have to go for it.
    pub(super) fn keep(&mut self, entry: KeptGrammar) -> Vec<KeptGrammar> {
        let mut gone = Vec::new();
        self.bytes += entry.bytes;
        self.entries.push(entry);
        let limits = self.limits;
        while self.entries.len() > limits.kept || self.bytes > limits.kept_bytes {
            let first = self.entries.remove(0);
            self.bytes -= first.bytes;
            gone.push(first);
        }
        gone
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}
