//! Weights that are loaded anew in another way while slots hold what they hold.

mod common;

use common::{Cut, Fixture, run_cut};
use motley_engine::{
    CacheElement, Engine, FileType, LayoutChoice, ModelRecipe, Placement, Residency, Row,
    small_model,
};
use motley_ggml::Token;

use Residency::{Mapped, Ram, Stream};

/// More than the stream's buffer holds.
const LAYERS: usize = 12;

fn recipe(architecture: &str) -> ModelRecipe {
    let mut recipe = small_model(architecture, FileType::Q8_0);
    recipe.shape.blocks = LAYERS;
    recipe.shape.vocabulary_size = Some(2048);
    recipe
}

/// A device gives memory to another program in mid-answer, and takes it back.
#[test]
fn weights_loaded_anew_go_on_with_the_same_logits() {
    for architecture in ["llama", "gemma3"] {
        let Some((_folder, fixture)) = Fixture::made(&recipe(architecture)) else { return };
        let mut still = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
        let mut moving = fixture.engine(1, LayoutChoice::Plain, CacheElement::F16);
        let full = moving.memory().total_bytes();
        let yieldable = moving.yieldable_bytes(fixture.model.directory());
        let mut places = [
            Placement::within(2 * full),
            Placement::within(full - yieldable / 2),
            Placement::from(Stream),
            Placement::from(Ram),
            Placement::from(Mapped),
        ]
        .into_iter();
        for position in 0..15 {
            if position % 3 == 2 {
                let placement = places.next().expect("five places");
                moving.place_anew(&fixture.model, &placement, LayoutChoice::Plain).unwrap();
            }
            let rows = [Row { slot: 0, position }];
            let token = [Token::try_from(position * 31 % 2000).unwrap()];
            let expected = run_cut(&mut still, &Cut::whole(LAYERS), &rows, &token, &[0]);
            let found = run_cut(&mut moving, &Cut::whole(LAYERS), &rows, &token, &[0]);
            assert!(found == expected, "{architecture}: position {position}");
        }
    }
}

#[test]
fn what_can_be_given_away_is_given_away() {
    let Some((_folder, fixture)) = Fixture::made(&recipe("llama")) else { return };
    let load = |placement: Placement| {
        Engine::load(&fixture.model, &fixture.options(1, placement)).unwrap()
    };
    for placement in [Placement::from(Mapped), Ram.into(), Placement::per_layer(vec![Ram; LAYERS])]
    {
        let mut engine = load(placement.clone());
        let yieldable = engine.yieldable_bytes(fixture.model.directory());
        assert!(yieldable > 0, "{placement:?}");
        let least = engine.memory().total_bytes() - yieldable;
        if engine.set_memory_budget(least).is_err() {
            let within = Placement::within(least);
            engine.place_anew(&fixture.model, &within, LayoutChoice::Plain).unwrap();
        }
        let memory = engine.memory();
        assert!(memory.total_bytes() - memory.weights_mapped_bytes <= least, "{placement:?}");
        let figures = engine.stream_figures().expect("weights move now");
        assert!(figures.streamed_bytes > 0, "{placement:?}: {figures:?}");
    }
}
