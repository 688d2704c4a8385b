//! The driver with a real model: shared batches, reused slots, endings.

mod prompts;

use std::sync::Arc;
use std::time::Duration;

use motley_engine::{
    CacheElement, EngineOptions, LayoutChoice, Model, SamplingOptions, SamplingParameters,
};
use motley_ggml::{
    ElementType, ReferenceContext, ReferenceModel, ReferenceOptions, ReferenceRow,
    ThreadPoolOptions, Token, Vocabulary,
};
use serde_json::json;

use super::{
    Answer, CallerKey, Deployment, Driver, Event, FinishReason, Purpose, Request, SubmitError,
};
use crate::memory::{self, Duty, Usage};
use crate::prompt::PromptMaker;
use crate::small_model::small_model;

const CONTEXT_TOKENS: usize = 256;

const BATCH_ROWS: usize = 24;

const THREADS: ThreadPoolOptions = ThreadPoolOptions { threads: 1, poll_percent: 0, pinned: false };

/// Fails a test that would wait forever.
const PATIENCE: Duration = Duration::from_secs(300);

struct Fixture {
    model: Arc<Model>,
    driver: Driver,
    vocabulary: Vocabulary,
    logits: usize,
}

impl Fixture {
    /// A driver for the smallest real model, or nothing, with a message, where it is not here.
    fn load(slots: usize) -> Option<Self> {
        let model = Arc::new(small_model()?);
        let options = EngineOptions {
            layers: (0..model.directory().hyper.block_count).into(),
            embedding: true,
            head: true,
            slots,
            context_tokens: CONTEXT_TOKENS,
            batch_rows_max: BATCH_ROWS,
            cache: CacheElement::F16,
            threads: THREADS,
            batch_threads: None,
            layout: LayoutChoice::Plain,
            placement: motley_engine::Residency::Mapped.into(),
        };
        let vocabulary = model.vocabulary().unwrap();
        let driver = Driver::new();
        driver.end_answers_by(vocabulary.end_tokens());
        let deployment = Deployment::alone(Arc::clone(&model), options).unwrap();
        let (send, loaded) = std::sync::mpsc::channel();
        let report = move |facts| drop(send.send(facts));
        let standby = driver.load(deployment, report, Box::new(|_| ())).unwrap();
        loaded.recv().unwrap().unwrap();
        driver.start(standby);
        let logits = model.directory().hyper.vocabulary_size;
        Some(Self { model, driver, vocabulary, logits })
    }

    fn tokens(&self, text: &str) -> Vec<Token> {
        self.vocabulary.tokenize(text, true, false).unwrap()
    }

    fn submit(&self, prompt: Vec<Token>, answer_tokens_max: usize) -> Result<Answer, SubmitError> {
        let options = SamplingOptions { ignore_eos: true, ..SamplingOptions::greedy() };
        let parameters = SamplingParameters::new(options, self.logits).unwrap();
        let (listener, answer) = Answer::channel();
        self.driver.submit(Request {
            id: "test".to_owned(),
            caller: CallerKey::default(),
            priority: 0,
            prompt,
            purpose: Purpose::Answer,
            parameters,
            constrainer: None,
            answer_tokens_max,
            listener: Box::new(listener),
        })?;
        Ok(answer)
    }
}

/// What one answer was.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    cached_tokens: usize,
    tokens: Vec<Token>,
    reason: FinishReason,
}

/// Listens to the end, which comes once and after which nothing comes.
fn hear(answer: &Answer) -> Heard {
    let (mut cached, mut tokens) = (None, Vec::new());
    loop {
        match answer.next_within(PATIENCE).expect("an event in time") {
            Event::Prefilled(prefill) => {
                assert!(cached.replace(prefill.cached_tokens).is_none());
            }
            Event::Token(token) => tokens.push(token),
            Event::Ended(outcome) => {
                let ended = outcome.unwrap();
                assert_eq!(ended.tokens, tokens.len());
                let after = answer.next_within(PATIENCE);
                assert!(matches!(after, Some(Event::Ended(Err(_)))), "the channel is closed");
                let cached_tokens = cached.expect("the prompt was computed before the end");
                return Heard { cached_tokens, tokens, reason: ended.reason };
            }
        }
    }
}

const PROMPTS: [&str; 5] = [
    "The capital of France is",
    "Once upon a time, in a small village at the foot of a mountain, there lived a girl who \
     could talk to the river. Every morning she went down to the water and asked it where it came",
    "One, two, three,",
    "Water boils at",
    "The opposite of hot is cold, and the opposite of up is",
];

#[test]
fn sharing_batches_changes_no_answer() {
    let (Some(shared), Some(alone)) = (Fixture::load(3), Fixture::load(1)) else { return };
    // More requests than slots: two wait their turn.
    let answers: Vec<Answer> =
        PROMPTS.iter().map(|text| shared.submit(shared.tokens(text), 10).unwrap()).collect();
    for (text, answer) in PROMPTS.iter().zip(&answers) {
        let expected = hear(&alone.submit(alone.tokens(text), 10).unwrap());
        let found = hear(answer);
        assert_eq!(found.tokens, expected.tokens, "{text}");
        assert_eq!(found.reason, FinishReason::Length);
    }
}

#[test]
fn a_chat_gets_the_answer_that_llama_cpp_gives() {
    let Some(fixture) = Fixture::load(1) else { return };
    let description = &fixture.model.directory().description;
    let prompts = PromptMaker::new(description, &fixture.vocabulary).unwrap();
    let messages = [json!({ "role": "user", "content": "What is the capital of France?" })];
    let prompt = prompts.chat(&messages, &fixture.vocabulary).unwrap();
    let rendered = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by \
        Hugging Face<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n\
        <|im_start|>assistant\n";
    assert_eq!(prompt, fixture.vocabulary.tokenize(rendered, false, true).unwrap());
    let found = hear(&fixture.submit(prompt.clone(), 16).unwrap()).tokens;
    assert_eq!(found, reference_greedy(&fixture, &prompt, 16));
}

/// Greedy tokens of llama.cpp itself, end tokens apart.
fn reference_greedy(fixture: &Fixture, prompt: &[Token], count: usize) -> Vec<Token> {
    let model = ReferenceModel::load(fixture.model.path(), false).unwrap();
    let options = ReferenceOptions {
        context_tokens: CONTEXT_TOKENS as u32,
        sequences: 1,
        batch_rows: CONTEXT_TOKENS as u32,
        cache_elements: [ElementType::F16; 2],
        batch_threads: None,
        threads: THREADS,
    };
    let mut context = ReferenceContext::new(&model, options).unwrap();
    let (mut next, mut position, mut chosen) = (prompt.to_vec(), 0, Vec::new());
    while chosen.len() < count {
        let last = next.len() - 1;
        let rows: Vec<ReferenceRow> = next
            .iter()
            .zip(position..)
            .enumerate()
            .map(|(index, (token, position))| ReferenceRow {
                token: *token,
                position,
                sequence: 0,
                logits: index == last,
            })
            .collect();
        context.decode(&rows).unwrap();
        position += rows.len() as u32;
        let logits = context.logits(last);
        let best = (0..logits.len())
            .filter(|token| !fixture.vocabulary.ends_generation(*token as Token))
            .max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)))
            .expect("a token");
        chosen.push(best as Token);
        next = vec![best as Token];
    }
    chosen
}

#[test]
fn a_slot_computes_only_what_is_new() {
    let Some(fixture) = Fixture::load(2) else { return };
    let prompt = fixture.tokens(PROMPTS[1]);
    let first = hear(&fixture.submit(prompt.clone(), 6).unwrap());
    assert_eq!(first.cached_tokens, 0);
    // Another conversation takes the other slot.
    hear(&fixture.submit(fixture.tokens(PROMPTS[2]), 6).unwrap());
    let longer = [&prompt[..], &first.tokens].concat();
    let second = hear(&fixture.submit(longer.clone(), 4).unwrap());
    // The last token chosen was never computed, because nothing followed it.
    assert_eq!(second.cached_tokens, longer.len() - 1);
    // The same prompt again: its last token is computed anew, for its logits.
    let again = hear(&fixture.submit(prompt.clone(), 6).unwrap());
    assert_eq!((again.cached_tokens, &again.tokens), (prompt.len() - 1, &first.tokens));
}

#[test]
fn a_dropped_answer_frees_its_slot() {
    let Some(fixture) = Fixture::load(1) else { return };
    let endless = fixture.submit(fixture.tokens(PROMPTS[2]), usize::MAX).unwrap();
    assert!(matches!(endless.next_within(PATIENCE), Some(Event::Prefilled { .. })));
    let waiting = fixture.submit(fixture.tokens(PROMPTS[0]), 2).unwrap();
    drop(endless);
    assert_eq!(hear(&waiting).tokens.len(), 2);
}

#[test]
fn an_answer_ends_where_the_context_does() {
    let Some(fixture) = Fixture::load(1) else { return };
    let mut prompt = fixture.tokens(&"word ".repeat(CONTEXT_TOKENS));
    prompt.truncate(CONTEXT_TOKENS - 3);
    let heard = hear(&fixture.submit(prompt, usize::MAX).unwrap());
    assert_eq!((heard.tokens.len(), heard.reason), (3, FinishReason::ContextFull));
}

#[test]
fn what_does_not_fit_is_refused_at_once() {
    let Some(fixture) = Fixture::load(1) else { return };
    let refused = |tokens: usize| fixture.submit(vec![1; tokens], 1).err();
    assert!(matches!(refused(0), Some(SubmitError::EmptyPrompt)));
    assert!(matches!(
        refused(CONTEXT_TOKENS),
        Some(SubmitError::PromptTooLong { tokens: 256, context_tokens: 256 })
    ));
}

#[test]
fn memory_is_foretold() {
    let Some(fixture) = Fixture::load(3) else { return };
    let (duty, batch_rows) = (Duty::Text, BATCH_ROWS as u64);
    let usage = Usage { duty, slots: 3, batch_rows, cache: CacheElement::F16 };
    let foretold =
        memory::needed(fixture.model.directory(), &usage, CONTEXT_TOKENS as u64).unwrap();
    let held = fixture.driver.facts().unwrap().memory;
    assert_eq!(foretold.model.weights_bytes, held.weights_mapped_bytes);
    assert_eq!(foretold.model.cache_bytes, held.cache_bytes);
    // The estimate errs on the safe side, but not far.
    let (most, found) = (foretold.compute_bytes, held.compute_bytes);
    assert!(found <= most && most <= 4 * found, "{found} of {most} foretold bytes");
}

#[test]
fn dropping_the_driver_ends_every_answer() {
    let Some(fixture) = Fixture::load(1) else { return };
    let running = fixture.submit(fixture.tokens(PROMPTS[2]), usize::MAX).unwrap();
    let waiting = fixture.submit(fixture.tokens(PROMPTS[2]), usize::MAX).unwrap();
    drop(fixture);
    for answer in [running, waiting] {
        let mut events = std::iter::from_fn(|| answer.next_within(PATIENCE));
        assert!(events.any(|event| matches!(event, Event::Ended(Err(_)))));
    }
}
