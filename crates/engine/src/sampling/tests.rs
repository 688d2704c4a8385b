//! The sampler against a plain reading of the formulas, in double precision and fully sorted.

use expect_test::expect;
use motley_ggml::Token;
use proptest::prelude::*;

use super::*;

/// Eligible tokens with their probabilities, most probable first.
fn naive_distribution(logits: &[f32], options: &SamplingOptions) -> Vec<(Token, f64)> {
    let temperature = f64::from(options.temperature);
    let greatest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut all: Vec<(Token, f64)> = logits
        .iter()
        .enumerate()
        .map(|(token, &logit)| {
            (token as Token, ((f64::from(logit) - greatest) / temperature).exp())
        })
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if options.top_k > 0 {
        all.truncate(options.top_k as usize);
    }
    let mass = all.iter().map(|(_, weight)| weight).sum::<f64>() * f64::from(options.top_p);
    let mut sum = 0.0;
    if options.top_p < 1.0 {
        let kept = all.iter().position(|(_, weight)| {
            sum += weight;
            sum >= mass
        });
        all.truncate(kept.map_or(all.len(), |index| index + 1));
    }
    all.retain(|(_, weight)| *weight >= f64::from(options.min_p));
    let total: f64 = all.iter().map(|(_, weight)| weight).sum();
    all.iter().map(|&(token, weight)| (token, weight / total)).collect()
}

/// Reproducible logits with the spread of a real model's.
fn made_logits(count: usize, seed: u64) -> Vec<f32> {
    let random = PositionedRandom::new(seed);
    (0..count as u64)
        .map(|index| {
            let normal: f64 = (0..12).map(|draw| random.uniform(index, draw)).sum::<f64>() - 6.0;
            (normal * 2.5) as f32
        })
        .collect()
}

fn sample_at(
    sampler: &mut Sampler,
    logits: &[f32],
    options: &SamplingOptions,
    position: usize,
) -> Sampled {
    let parameters =
        SamplingParameters::new(options.clone(), logits.len()).expect("options are in range");
    let prompt = vec![0; position];
    let context =
        SampleContext { parameters: &parameters, prompt: &prompt, generated: &[], allowed: None };
    sampler.sample(logits, &context).expect("logits are finite")
}

/// Draws at many positions and compares the counts with the probabilities by chi-square; the
/// bound is five standard deviations above the mean. Nothing outside the distribution is drawn.
fn check_distribution(logits: &[f32], options: &SamplingOptions) {
    let draws = 20_000;
    let expected = naive_distribution(logits, options);
    let parameters =
        SamplingParameters::new(options.clone(), logits.len()).expect("options are in range");
    let mut sampler = Sampler::new(logits.len(), &[]).expect("no end tokens");
    let mut counts = vec![0_u32; logits.len()];
    let prompt = vec![0; draws];
    for position in 0..draws {
        let prompt = &prompt[..position];
        let context =
            SampleContext { parameters: &parameters, prompt, generated: &[], allowed: None };
        counts[sampler.sample(logits, &context).expect("finite").token as usize] += 1;
    }
    let drawn_outside: u32 = counts.iter().sum::<u32>()
        - expected.iter().map(|&(token, _)| counts[token as usize]).sum::<u32>();
    assert_eq!(drawn_outside, 0, "{options:?}");
    // Rare tokens share one class, so that every class expects at least five draws.
    let (mut classes, mut rare) = (Vec::new(), (0.0, 0.0));
    for &(token, probability) in &expected {
        let pair = (probability * draws as f64, f64::from(counts[token as usize]));
        if pair.0 < 5.0 {
            rare = (rare.0 + pair.0, rare.1 + pair.1);
        } else {
            classes.push(pair);
        }
    }
    if rare.0 >= 5.0 {
        classes.push(rare);
    }
    let chi_square: f64 =
        classes.iter().map(|(expected, seen)| (seen - expected).powi(2) / expected).sum();
    let freedom = classes.len().saturating_sub(1) as f64;
    let bound = freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9;
    assert!(chi_square <= bound, "chi-square {chi_square} of {freedom} classes: {options:?}");
}

#[test]
fn draws_follow_the_filtered_distribution() {
    let neutral = SamplingOptions::unchanged(11);
    let cases = [
        neutral.clone(),
        SamplingOptions { temperature: 0.5, ..neutral.clone() },
        SamplingOptions { temperature: 2.0, ..neutral.clone() },
        SamplingOptions { top_k: 7, ..neutral.clone() },
        SamplingOptions { top_p: 0.6, ..neutral.clone() },
        SamplingOptions { min_p: 0.05, ..neutral.clone() },
        SamplingOptions { top_k: 40, top_p: 0.8, min_p: 0.02, temperature: 0.9, ..neutral.clone() },
        SamplingOptions { top_p: 0.999, temperature: 2.0, seed: u64::MAX, ..neutral },
    ];
    for options in cases {
        check_distribution(&made_logits(1_000, 3), &options);
    }
}

#[test]
fn a_flat_distribution_is_cut_in_the_middle_of_its_ties() {
    // All weights are one: half of the mass is the first half of the tokens, and the selection
    // must pass from few candidates to all.
    let logits = vec![1.5; 9_000];
    let options = SamplingOptions { top_p: 0.5, ..SamplingOptions::unchanged(5) };
    let mut sampler = Sampler::new(logits.len(), &[]).expect("no end tokens");
    let tokens: Vec<Token> = (0..300)
        .map(|position| sample_at(&mut sampler, &logits, &options, position).token)
        .collect();
    assert!(tokens.iter().all(|&token| token < 4_500));
    assert!(tokens.iter().any(|&token| token > 4_400));
}

#[test]
fn greedy_ties_go_to_the_lowest_token_wherever_the_tie_lies() {
    let mut sampler = Sampler::new(5_000, &[]).expect("no end tokens");
    for (first, second) in [(0, 4_999), (3, 4), (1_023, 1_024), (1_024, 3_000), (4_998, 4_999)] {
        let mut logits = made_logits(5_000, 1);
        logits[first] = 50.0;
        logits[second] = 50.0;
        let sampled = sample_at(&mut sampler, &logits, &SamplingOptions::greedy(), 0);
        assert_eq!(sampled.token as usize, first);
    }
    let zeros = [vec![-0.0; 2_500], vec![0.0; 2_500]].concat();
    assert_eq!(sample_at(&mut sampler, &zeros, &SamplingOptions::greedy(), 0).token, 0);
}

#[test]
fn penalties_follow_their_formulas() {
    // Token 0 was generated once, 1 twice, 4 is in the prompt, 3 lies beyond the window.
    let logits = [2.0, -1.0, 0.5, 4.0, -3.0];
    let options = SamplingOptions {
        repetition_penalty: 1.5,
        repetition_window: 4,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        logit_bias: vec![(2, 1.0), (4, -1.0), (2, 0.5)],
        ..SamplingOptions::greedy()
    };
    let expected = [2.0 / 1.5 - 0.75, -1.5 - 0.25 - 2.0 * 0.5, 2.0, 4.0, -4.0 * 1.5];
    let parameters = SamplingParameters::new(options, logits.len()).expect("in range");
    let context = SampleContext {
        parameters: &parameters,
        prompt: &[3, 4],
        generated: &[1, 0, 1],
        allowed: None,
    };
    let mut sampler = Sampler::new(logits.len(), &[]).expect("no end tokens");
    assert_eq!(sampler.sample(&logits, &context).expect("finite").token, 3);
    assert_eq!(sampler.adjusted_logits(), expected);
}

#[test]
fn end_tokens_wait_for_min_tokens_and_never_come_with_ignore_eos() {
    let logits = [1.0, 9.0, 8.0, 7.0];
    let mut sampler = Sampler::new(4, &[1]).expect("inside the vocabulary");
    let mut sample = |options: &SamplingOptions, generated: &[Token]| {
        let parameters = SamplingParameters::new(options.clone(), 4).expect("in range");
        let context =
            SampleContext { parameters: &parameters, prompt: &[0], generated, allowed: None };
        let sampled = sampler.sample(&logits, &context).expect("tokens are left");
        (sampled.token, sampled.ends_answer)
    };
    let waiting =
        SamplingOptions { min_tokens: 2, stop_token_ids: vec![2], ..SamplingOptions::greedy() };
    assert_eq!(sample(&waiting, &[]), (3, false));
    assert_eq!(sample(&waiting, &[3]), (3, false));
    assert_eq!(sample(&waiting, &[3, 3]), (1, true));
    let endless = SamplingOptions { ignore_eos: true, ..waiting };
    assert_eq!(sample(&endless, &[3, 3]), (2, true));
}

#[test]
fn log_probabilities_are_those_of_the_untouched_distribution() {
    let logits = made_logits(3_000, 9);
    let options = SamplingOptions {
        temperature: 0.3,
        top_k: 5,
        logit_bias: vec![(17, 100.0)],
        top_logprobs: Some(20),
        ..SamplingOptions::unchanged(1)
    };
    let mut sampler = Sampler::new(logits.len(), &[]).expect("no end tokens");
    let sampled = sample_at(&mut sampler, &logits, &options, 4);
    let plain = naive_distribution(&logits, &SamplingOptions::unchanged(0));
    let reported = sampled.log_probabilities.expect("asked for");
    let probability_of_17 = plain.iter().find(|(token, _)| *token == 17).expect("it exists").1;
    assert_eq!((sampled.token, reported.chosen().token), (17, 17));
    assert!((f64::from(reported.chosen().log_probability) - probability_of_17.ln()).abs() < 1e-5);
    assert_eq!(reported.top().len(), 20);
    for (entry, (token, probability)) in reported.top().iter().zip(&plain) {
        assert_eq!(entry.token, *token);
        assert!((f64::from(entry.log_probability) - probability.ln()).abs() < 1e-5);
    }
    let none_asked = SamplingOptions { top_logprobs: Some(0), ..options };
    let reported = sample_at(&mut sampler, &logits, &none_asked, 4).log_probabilities;
    assert_eq!(reported.expect("the chosen token's is asked for").top(), []);
}

#[test]
fn each_failure_is_an_error_that_says_what_was_found() {
    let parameters = SamplingParameters::new(SamplingOptions::greedy(), 3).expect("in range");
    let penalised = SamplingOptions { presence_penalty: 1.0, ..SamplingOptions::greedy() };
    let penalised = SamplingParameters::new(penalised, 3).expect("in range");
    let none = TokenMask::none_allowed(3);
    let other = TokenMask::all_allowed(4);
    let plain =
        SampleContext { parameters: &parameters, prompt: &[0], generated: &[], allowed: None };
    let cases: [(&[f32], SampleContext<'_>); 9] = [
        (&[0.0, f32::NAN, 0.0], plain),
        (&[0.0, 0.0, f32::INFINITY], plain),
        (&[f32::NEG_INFINITY, 0.0, 0.0], plain),
        (&[0.0, 0.0], plain),
        (&[], plain),
        (&[0.0; 3], SampleContext { allowed: Some(&none), ..plain }),
        (&[0.0; 3], SampleContext { allowed: Some(&other), ..plain }),
        (&[0.0; 3], SampleContext { parameters: &penalised, generated: &[3], ..plain }),
        (&[0.0; 3], SampleContext { parameters: &penalised, generated: &[-1], ..plain }),
    ];
    let mut sampler = Sampler::new(3, &[]).expect("no end tokens");
    let mut messages: Vec<String> = cases
        .iter()
        .map(|(logits, context)| {
            sampler.sample(logits, context).expect_err("must fail").to_string()
        })
        .collect();
    messages.push(Sampler::new(3, &[7]).expect_err("outside").to_string());
    expect![[r#"
        logit of token 1 is NaN
        logit of token 2 is inf
        logit of token 0 is -inf
        2 logits for a vocabulary of 3 tokens
        0 logits for a vocabulary of 3 tokens
        no token is allowed at position 1
        parameters or mask for 4 tokens used with 3 tokens
        token 3 is outside the vocabulary of 3 tokens
        token -1 is outside the vocabulary of 3 tokens
        token 7 is outside the vocabulary of 3 tokens"#]]
    .assert_eq(&messages.join("\n"));
    // A failed call leaves nothing behind.
    let recovered = SampleContext { parameters: &penalised, generated: &[0], ..plain };
    assert_eq!(sampler.sample(&[0.5, 0.0, 0.0], &recovered).expect("valid").token, 1);
}

#[test]
fn each_refused_option_names_its_field_and_range() {
    let good = SamplingOptions::unchanged(0);
    let refused = [
        SamplingOptions { temperature: -0.1, ..good.clone() },
        SamplingOptions { temperature: f32::NAN, ..good.clone() },
        SamplingOptions { top_p: 1.1, ..good.clone() },
        SamplingOptions { min_p: -1.0, ..good.clone() },
        SamplingOptions { repetition_penalty: 0.0, ..good.clone() },
        SamplingOptions { presence_penalty: -99.0, ..good.clone() },
        SamplingOptions { frequency_penalty: f32::INFINITY, ..good.clone() },
        SamplingOptions { top_logprobs: Some(21), ..good.clone() },
        SamplingOptions { logit_bias: vec![(50, 1.0)], ..good.clone() },
        SamplingOptions { logit_bias: vec![(1, 101.0)], ..good.clone() },
        SamplingOptions { logit_bias: vec![(1, 1.0); 1_025], ..good.clone() },
        SamplingOptions { stop_token_ids: vec![99], ..good.clone() },
        SamplingOptions { stop_token_ids: vec![-1], ..good.clone() },
        SamplingOptions { stop_token_ids: vec![1; 65], ..good },
    ];
    let messages: Vec<String> = refused
        .map(|options| {
            let error = SamplingParameters::new(options, 50).expect_err("must be refused");
            format!("{}: {error}", error.field())
        })
        .to_vec();
    expect![[r#"
        temperature: temperature must be between 0 and 2, not -0.1
        temperature: temperature must be a finite number, not NaN
        top_p: top_p must be between 0 and 1, not 1.1
        min_p: min_p must be between 0 and 1, not -1
        repetition_penalty: repetition_penalty must be between 0.01 and 100, not 0
        presence_penalty: presence_penalty must be between -2 and 2, not -99
        frequency_penalty: frequency_penalty must be a finite number, not inf
        top_logprobs: top_logprobs must be at most 20, not 21
        logit_bias: logit_bias names token 50, but the vocabulary has 50 tokens
        logit_bias: logit_bias must be between -100 and 100, not 101
        logit_bias: logit_bias must be at most 1024, not 1025
        stop_token_ids: stop_token_ids names token 99, but the vocabulary has 50 tokens
        stop_token_ids: stop_token_ids names token -1, but the vocabulary has 50 tokens
        stop_token_ids: stop_token_ids must be at most 64, not 65"#]]
    .assert_eq(&messages.join("\n"));
}

#[test]
fn sampled_tokens_never_change_between_releases() {
    let options =
        SamplingOptions { temperature: 0.8, top_p: 0.95, ..SamplingOptions::unchanged(42) };
    let mut sampler = Sampler::new(32_000, &[]).expect("no end tokens");
    let logits = made_logits(32_000, 2);
    let tokens: Vec<Token> = (0..12)
        .map(|position| sample_at(&mut sampler, &logits, &options, position).token)
        .collect();
    expect!["[23217, 10900, 24429, 10900, 15636, 31, 23041, 1078, 11996, 20926, 23217, 5897]"]
        .assert_eq(&format!("{tokens:?}"));
}

#[test]
fn a_hot_sampler_keeps_its_memory() {
    // Buffers that keep address and capacity were not allocated again.
    let options = SamplingOptions {
        top_p: 0.9,
        repetition_penalty: 1.1,
        frequency_penalty: 0.5,
        top_logprobs: Some(5),
        ..SamplingOptions::unchanged(6)
    };
    let mut sampler = Sampler::new(20_000, &[]).expect("no end tokens");
    let logits = made_logits(20_000, 4);
    sample_at(&mut sampler, &logits, &options, 64);
    let before = sampler.scratch_addresses();
    for position in 0..64 {
        sample_at(&mut sampler, &logits, &options, position);
    }
    assert_eq!(sampler.scratch_addresses(), before);
}

fn any_options() -> impl Strategy<Value = SamplingOptions> {
    (0.05_f32..2.0, 0_u32..300, 0.01_f32..=1.0, 0.0_f32..0.3, any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, seed)| SamplingOptions {
            temperature,
            top_k,
            top_p,
            min_p,
            ..SamplingOptions::unchanged(seed)
        },
    )
}

/// Few distinct values, so that ties are common, or any values.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(prop::sample::select(vec![-2.0, -0.0, 0.0, 0.5, 3.0]), 1..700),
        prop::collection::vec(-30.0_f32..30.0, 1..700),
    ]
}

proptest! {
    #[test]
    fn filters_keep_exactly_the_best(logits in any_logits(), options in any_options()) {
        let parameters = SamplingParameters::new(options.clone(), logits.len()).expect("in range");
        let kept = sampler::eligible_tokens(&logits, &parameters);
        // A cut that falls within rounding of a border may go either way.
        let with_top_p = |factor: f32| {
            let top_p = (options.top_p * factor).min(1.0);
            let min_p = options.min_p / factor;
            naive_distribution(&logits, &SamplingOptions { top_p, min_p, ..options.clone() })
        };
        let (fewest, most) = (with_top_p(1.0 - 1e-5), with_top_p(1.0 + 1e-5));
        let contains = |list: &[(Token, f64)], token: Token| list.iter().any(|entry| entry.0 == token);
        prop_assert!(kept.is_sorted() && !kept.is_empty());
        for &token in &kept {
            prop_assert!(contains(&most, token), "token {} is kept but ranks behind", token);
        }
        for &(token, _) in &fewest {
            prop_assert!(kept.contains(&token), "token {} is lost", token);
        }
    }

    #[test]
    fn a_sequence_resumed_anywhere_goes_on_alike(
        options in any_options(),
        resumed_at in 0_usize..24,
        logits_seed in any::<u64>(),
    ) {
        let options = SamplingOptions { repetition_penalty: 1.3, ..options };
        let parameters = SamplingParameters::new(options, 500).expect("in range");
        // The "model": logits depend on the whole sequence so far.
        let model = |sequence: &[Token]| {
            let state = sequence.iter().fold(logits_seed, |state, &token| {
                PositionedRandom::new(state).bits(token as u64, 0)
            });
            made_logits(500, state)
        };
        let prompt = [1, 2, 3];
        let extend = |sampler: &mut Sampler, fixed: &[Token], mut generated: Vec<Token>, until| {
            while fixed.len() + generated.len() < until {
                let sequence = [fixed, &generated].concat();
                let context = SampleContext {
                    parameters: &parameters,
                    prompt: fixed,
                    generated: &generated,
                    allowed: None,
                };
                generated.push(
                    sampler.sample(&model(&sequence), &context).expect("finite").token
                );
            }
            [fixed, &generated].concat()
        };
        let mut first = Sampler::new(500, &[]).expect("no end tokens");
        let mut second = Sampler::new(500, &[]).expect("no end tokens");
        let whole = extend(&mut first, &prompt, Vec::new(), 27);
        let begun = whole[prompt.len()..prompt.len() + resumed_at].to_vec();
        prop_assert_eq!(&extend(&mut second, &prompt, begun.clone(), 27), &whole);
        let as_prompt = [&prompt[..], &begun].concat();
        prop_assert_eq!(&extend(&mut second, &as_prompt, Vec::new(), 27), &whole);
    }

    #[test]
    fn a_mask_is_obeyed(
        logits in prop::collection::vec(-9.0_f32..9.0, 200),
        allowed in prop::collection::btree_set(0_i32..200, 1..20),
        options in any_options(),
    ) {
        let mut mask = TokenMask::none_allowed(200);
        allowed.iter().for_each(|&token| mask.allow(token));
        prop_assert_eq!(mask.allowed_count(), allowed.len());
        // Words of 32 tokens say the same, whatever stands beyond the vocabulary.
        let mut words = vec![0_u32; 7];
        allowed.iter().for_each(|&token| words[token as usize / 32] |= 1 << (token % 32));
        words[6] |= 0xffff_ff00;
        let mut assigned = TokenMask::all_allowed(200);
        assigned.assign(&words);
        prop_assert_eq!(&assigned, &mask);
        let parameters = SamplingParameters::new(options, 200).expect("in range");
        let mut sampler = Sampler::new(200, &[]).expect("no end tokens");
        for position in 0..10 {
            let prompt = vec![0; position];
            let context = SampleContext {
                parameters: &parameters,
                prompt: &prompt,
                generated: &[],
                allowed: Some(&mask),
            };
            let token = sampler.sample(&logits, &context).expect("some are allowed").token;
            prop_assert!(allowed.contains(&token) && mask.is_allowed(token));
        }
    }
}
